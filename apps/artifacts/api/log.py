"""The log of a run over the API: bytes, never text (api.md; lessons D13, D14)."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import ProblemSerializer, ProjectEndpoint, StrictSerializer, only_parameters
from apps.artifacts import reader, search, services
from apps.artifacts.errors import RangeNotSatisfiable
from apps.artifacts.services import Log, LogStream
from apps.core import ids, problems
from apps.core.errors import InvalidInput, NotFound
from apps.runs.queries import project_of

_WHOLE = re.compile(r"-?[0-9]{1,16}")
_RANGE = re.compile(r"bytes=([0-9]{0,16})-([0-9]{0,16})")
_LARGEST = 2**53 - 1
_LAST_ATTEMPT = 2**31 - 1


class AnyType(BaseContentNegotiation):
    """There is one form of a log, whatever the caller says it accepts."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


def _number(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


PARAMETERS = [
    OpenApiParameter("attempt", _number(1, _LAST_ATTEMPT), description="The last one without."),
    OpenApiParameter(
        "offset",
        _number(-_LARGEST, _LARGEST),
        description="First byte; negative counts from the end; 0 without.",
    ),
    OpenApiParameter("limit", _number(1, reader.MAX_LENGTH), description="Bytes; the most without."),
    OpenApiParameter("download", str, enum=["1"], description="The whole log as a file."),
    OpenApiParameter(
        "Range", str, OpenApiParameter.HEADER, description="One range, without offset and limit."
    ),
]
_HEADERS = [
    OpenApiParameter(name, kind, OpenApiParameter.HEADER, response=[200, 206], description=text)
    for name, kind, text in (
        ("X-Log-Size", int, "Bytes there are now."),
        ("X-Log-Offset", int, "Where the content begins."),
        ("X-Log-Complete", str, "true: no more will come."),
        ("X-Log-Truncated", str, "true, false or unknown: cut by the quota."),
    )
]
_BYTES = OpenApiResponse(OpenApiTypes.BINARY)
_RESPONSES = {
    (200, "application/octet-stream"): _BYTES,
    (206, "application/octet-stream"): _BYTES,
    (410, problems.CONTENT_TYPE): OpenApiResponse(ProblemSerializer, "Removed by retention"),
    (416, problems.CONTENT_TYPE): OpenApiResponse(ProblemSerializer, "No such bytes"),
}


class HitSerializer(StrictSerializer):
    """A line with a hit: the first byte of the line, that of the hit, and the line about it."""

    line_offset = serializers.IntegerField()
    offset = serializers.IntegerField()
    text = serializers.CharField()


class FoundSerializer(StrictSerializer):
    """Hits of one call; `next_offset` is where it stopped looking, null at the end."""

    items = HitSerializer(many=True)
    next_offset = serializers.IntegerField(allow_null=True)
    size = serializers.IntegerField()


class OfRun(ProjectEndpoint):
    """Something about the log of a run; a 404 hides what there is from whoever may not read it."""

    permissions = {"GET": "artifact.read"}
    mask = True

    def locate_project(self, **kwargs: Any) -> str:
        run_id = ids.parse_uuid(kwargs["id"])
        project_id = project_of(run_id) if run_id else None
        if project_id is None:
            raise NotFound
        return project_id


class RunLog(OfRun):
    """What a run printed, stdout and stderr in order, byte for byte."""

    content_negotiation_class = AnyType

    @extend_schema(summary="Read a log", parameters=[*PARAMETERS, *_HEADERS], responses=_RESPONSES)
    def get(self, request: Request, id: str) -> HttpResponseBase:
        attempt = _attempt(request)
        if request.query_params.get("download") == "1":
            return self._download(id, attempt)
        if _asks_range(request):
            return self._range(request, id, attempt)
        part = services.read_log(
            self.grant, _run(id), attempt=attempt, offset=_offset(request), length=_limit(request)
        )
        return _described(HttpResponse(part.content), part.log, part.start)

    @extend_schema(exclude=True)
    def head(self, request: Request, id: str) -> HttpResponseBase:
        log = services.describe_log(self.grant, _run(id), attempt=_attempt(request))
        start = reader.start_of(_offset(request), log.size)
        response = _described(HttpResponse(), log, start)
        response["Content-Length"] = str(min(_limit(request), log.size - start))
        return response

    def _download(self, id: str, attempt: int | None) -> HttpResponseBase:
        whole = services.stream_log(self.grant, _run(id), attempt=attempt)
        response = _streamed(whole, 0, whole.log.size)
        response["Content-Disposition"] = f'attachment; filename="{whole.log.name}.log"'
        return response

    def _range(self, request: Request, id: str, attempt: int | None) -> HttpResponseBase:
        whole = services.stream_log(self.grant, _run(id), attempt=attempt)
        found = _span(request.headers["Range"], whole.log.size)
        if found is None:
            if whole.content is not None:
                whole.content.close()
            refusal = problems.of(RangeNotSatisfiable())
            refusal["Content-Range"] = f"bytes */{whole.log.size}"
            return refusal
        start, end = found
        response = _streamed(whole, start, end)
        response.status_code = 206
        response["Content-Range"] = f"bytes {start}-{end - 1}/{whole.log.size}"
        return response


class SearchLog(OfRun):
    """Lines that hold a text, found where the log lies; a call looks through 64 MiB at most.

    Letters A to Z match in either case. Ask again from `next_offset` until it is null.
    """

    @extend_schema(
        summary="Search in a log",
        parameters=[
            OpenApiParameter(
                "q", {"type": "string", "minLength": 1, "maxLength": search.MAX_WANTED}, required=True
            ),
            PARAMETERS[0],
            OpenApiParameter("offset", _number(0, _LARGEST), description="First byte looked at; 0 without."),
            OpenApiParameter("limit", _number(1, search.MAX_HITS), description="Lines; 50 without."),
        ],
        responses=FoundSerializer,
    )
    def get(self, request: Request, id: str) -> HttpResponseBase:
        only_parameters(request, "q", "attempt", "offset", "limit")
        wanted = request.query_params.get("q", "")
        if not ids.is_text_id(wanted, search.MAX_WANTED):
            raise InvalidInput.field("q", _("1 to 200 characters, none of them a control character."))
        found = services.search_log(
            self.grant, _run(id), wanted, attempt=_attempt(request),
            offset=_whole(request, "offset", 0, 0, _LARGEST) or 0,
            most=_whole(request, "limit", 50, 1, search.MAX_HITS) or 50,
        )  # fmt: skip
        items = [
            {"line_offset": hit.line_offset, "offset": hit.offset, "text": hit.text} for hit in found.hits
        ]
        return Response({"items": items, "next_offset": found.next_offset, "size": found.total_bytes})


def _streamed(whole: LogStream, start: int, end: int) -> HttpResponseBase:
    if whole.content is not None:
        whole.content.limit(start, end)
    response = StreamingHttpResponse(whole.content or ())
    response["Content-Length"] = str(end - start)
    # Compressed, the answer would have neither the length nor the range it names.
    response["Content-Encoding"] = "identity"
    return _described(response, whole.log, start)


def _described(response: HttpResponseBase, log: Log, start: int) -> HttpResponseBase:
    response["Content-Type"] = "application/octet-stream"
    response["X-Content-Type-Options"] = "nosniff"
    response["Accept-Ranges"] = "bytes"
    response["X-Log-Size"] = str(log.size)
    response["X-Log-Offset"] = str(start)
    response["X-Log-Complete"] = _word(log.complete)
    response["X-Log-Truncated"] = log.truncated if isinstance(log.truncated, str) else _word(log.truncated)
    return response


def _word(value: bool) -> str:
    return "true" if value else "false"


def _run(text: str) -> UUID:
    return UUID(text)


def _attempt(request: Request) -> int | None:
    return _whole(request, "attempt", None, 1, _LAST_ATTEMPT)


def _offset(request: Request) -> int:
    return _whole(request, "offset", 0, -_LARGEST, _LARGEST) or 0


def _limit(request: Request) -> int:
    return _whole(request, "limit", None, 1, reader.MAX_LENGTH) or reader.MAX_LENGTH


def _whole(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    text = request.query_params.get(name) or ""
    if not text:
        return default
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise InvalidInput.field(name, _("A whole number within its bounds is expected."))
    return int(text)


def _asks_range(request: Request) -> bool:
    """Whether one range is asked for in a way we understand; all else is answered as if it were not there."""
    header = request.headers.get("Range", "").strip()
    own = "offset" in request.query_params or "limit" in request.query_params
    found = _RANGE.fullmatch(header)
    return found is not None and found[0] != "bytes=-" and not own and "If-Range" not in request.headers


def _span(header: str, size: int) -> tuple[int, int] | None:
    """Start and exclusive end of a range within `size` bytes, None where no byte of it is there."""
    found = _RANGE.fullmatch(header.strip())
    assert found is not None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None
