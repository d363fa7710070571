"""The answer that carries a file of unknown make: a download and nothing else, whatever it holds."""

from __future__ import annotations

from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header

from apps.artifacts.files import OpenFile
from apps.artifacts.models import Artifact

# Opened in spite of all, it gets no script, no form, no plugin and no origin to act from.
_POLICY = "sandbox; default-src 'none'"


def download(found: OpenFile, start: int, end: int) -> HttpResponseBase:
    """The bytes from `start` up to, not including, `end`; closes the file when they are sent."""
    found.content.limit(start, end)
    response = StreamingHttpResponse(found.content)
    response["Content-Length"] = str(end - start)
    # Compressed, the answer would have neither the length nor the range it names.
    response["Content-Encoding"] = "identity"
    return described(response, found.row)


def without_content(found: OpenFile) -> HttpResponseBase:
    """What `download` of the whole file says of it; closes the file."""
    found.content.close()
    response = described(HttpResponse(), found.row)
    response["Content-Length"] = str(found.row.size)
    return response


def described(response: HttpResponseBase, row: Artifact) -> HttpResponseBase:
    """The response with everything that is said of a file beside its bytes (RFC 6266 for its name)."""
    kind = row.content_type
    response["Content-Type"] = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    name = row.name.rpartition("/")[2]
    response["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = _POLICY
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    response["Accept-Ranges"] = "bytes"
    response["ETag"] = f'"{row.sha256}"'
    return response
