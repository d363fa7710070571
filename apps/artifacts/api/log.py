"""The log of a run over the API: bytes, never text (api.md; lessons D13, D14)."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import StrictSerializer, only_parameters
from apps.artifacts import reader, search, services
from apps.artifacts.api.parts import (
    LAST_ATTEMPT,
    RESPONSES,
    AnyType,
    OfRun,
    asks_range,
    attempt_of,
    not_satisfiable,
    number,
    span,
    whole_number,
)
from apps.artifacts.services import Log, LogStream
from apps.core import ids
from apps.core.errors import InvalidInput

_LARGEST = 2**53 - 1

PARAMETERS = [
    OpenApiParameter("attempt", number(1, LAST_ATTEMPT), description="The last one without."),
    OpenApiParameter(
        "offset",
        number(-_LARGEST, _LARGEST),
        description="First byte; negative counts from the end; 0 without.",
    ),
    OpenApiParameter("limit", number(1, reader.MAX_LENGTH), description="Bytes; the most without."),
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
        (
            "X-Log-Masked",
            str,
            "Where in the content a mark stands for a secret, the first 200: how far each begins behind the one "
            "before, with commas between. Not there without any.",
        ),
    )
]


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


class RunLog(OfRun):
    """What a run printed, stdout and stderr in order, byte for byte."""

    content_negotiation_class = AnyType

    @extend_schema(summary="Read a log", parameters=[*PARAMETERS, *_HEADERS], responses=RESPONSES)
    def get(self, request: Request, id: str) -> HttpResponseBase:
        attempt = attempt_of(request)
        if request.query_params.get("download") == "1":
            return self._download(id, attempt)
        if _asks_range(request):
            return self._range(request, id, attempt)
        part = services.read_log(
            self.grant, _run(id), attempt=attempt, offset=_offset(request), length=_limit(request)
        )
        response = _described(HttpResponse(part.content), part.log, part.start)
        if part.masked:
            before = (part.start, *part.masked)
            response["X-Log-Masked"] = ",".join(
                str(at - last) for last, at in zip(before, part.masked, strict=False)
            )
        return response

    @extend_schema(exclude=True)
    def head(self, request: Request, id: str) -> HttpResponseBase:
        log = services.describe_log(self.grant, _run(id), attempt=attempt_of(request))
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
        found = span(request, whole.log.size)
        if found is None:
            if whole.content is not None:
                whole.content.close()
            return not_satisfiable(whole.log.size)
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
            OpenApiParameter("offset", number(0, _LARGEST), description="First byte looked at; 0 without."),
            OpenApiParameter("limit", number(1, search.MAX_HITS), description="Lines; 50 without."),
        ],
        responses=FoundSerializer,
    )
    def get(self, request: Request, id: str) -> HttpResponseBase:
        only_parameters(request, "q", "attempt", "offset", "limit")
        wanted = request.query_params.get("q", "")
        if not ids.is_text_id(wanted, search.MAX_WANTED):
            raise InvalidInput.field("q", _("1 to 200 characters, none of them a control character."))
        found = services.search_log(
            self.grant, _run(id), wanted, attempt=attempt_of(request),
            offset=whole_number(request, "offset", 0, 0, _LARGEST) or 0,
            most=whole_number(request, "limit", 50, 1, search.MAX_HITS) or 50,
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


def _offset(request: Request) -> int:
    return whole_number(request, "offset", 0, -_LARGEST, _LARGEST) or 0


def _limit(request: Request) -> int:
    return whole_number(request, "limit", None, 1, reader.MAX_LENGTH) or reader.MAX_LENGTH


def _asks_range(request: Request) -> bool:
    own = "offset" in request.query_params or "limit" in request.query_params
    return asks_range(request) and not own and "If-Range" not in request.headers
