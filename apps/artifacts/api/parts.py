"""What everything that a run left has in common, as it is read over HTTP."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpResponseBase
from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

from apps.access.endpoints import ProblemSerializer, ProjectEndpoint
from apps.artifacts.errors import RangeNotSatisfiable
from apps.core import ids, problems
from apps.core.errors import InvalidInput, NotFound
from apps.runs.queries import project_of

LAST_ATTEMPT = 2**31 - 1
_WHOLE = re.compile(r"-?[0-9]{1,16}")
_RANGE = re.compile(r"bytes=([0-9]{0,16})-([0-9]{0,16})")

_BYTES = OpenApiResponse(OpenApiTypes.BINARY)
RESPONSES = {
    (200, "application/octet-stream"): _BYTES,
    (206, "application/octet-stream"): _BYTES,
    (410, problems.CONTENT_TYPE): OpenApiResponse(ProblemSerializer, "Removed by retention"),
    (416, problems.CONTENT_TYPE): OpenApiResponse(ProblemSerializer, "No such bytes"),
}


class AnyType(BaseContentNegotiation):
    """There is one form of it, whatever the caller says it accepts."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class OfRun(ProjectEndpoint):
    """Something that a run left; a 404 hides what there is from whoever may not read it."""

    permissions = {"GET": "artifact.read"}
    mask = True

    def locate_project(self, **kwargs: Any) -> str:
        run_id = ids.parse_uuid(kwargs["id"])
        project_id = project_of(run_id) if run_id else None
        if project_id is None:
            raise NotFound
        return project_id


def number(least: int, most: int) -> dict[str, Any]:
    """A whole number, for the schema."""
    return {"type": "integer", "minimum": least, "maximum": most}


def whole_number(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    """A number of the address; raises InvalidInput."""
    text = request.query_params.get(name) or ""
    if not text:
        return default
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise InvalidInput.field(name, _("A whole number within its bounds is expected."))
    return int(text)


def attempt_of(request: Request) -> int | None:
    """The number of an attempt, where one is asked for; raises InvalidInput."""
    return whole_number(request, "attempt", None, 1, LAST_ATTEMPT)


def asks_range(request: Request) -> bool:
    """Whether one range is asked for in a way we understand; all else is answered as if it were not there."""
    found = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    return found is not None and found[0] != "bytes=-"


def span(request: Request, size: int) -> tuple[int, int] | None:
    """Start and exclusive end of the range within `size` bytes, None where no byte of it is there."""
    found = _RANGE.fullmatch(request.headers["Range"].strip())
    assert found is not None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None


def not_satisfiable(size: int) -> HttpResponseBase:
    """The answer where no byte of the range is there."""
    refusal = problems.of(RangeNotSatisfiable())
    refusal["Content-Range"] = f"bytes */{size}"
    return refusal
