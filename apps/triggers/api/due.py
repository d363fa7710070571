"""Why did it not run? The due times of a task, over the API."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import PAGE_PARAMETERS, ProjectEndpoint, page_of, paged
from apps.runs.api.views import SPAN, moment
from apps.tasks import queries as tasks
from apps.triggers import due
from apps.triggers.api.serializers import DueSerializer


class Due(ProjectEndpoint):
    """Each due time of a span, ascending, with what became of it; the last 24 hours unless said otherwise."""

    permissions = {"GET": "run.read"}

    @extend_schema(
        summary="Why did it not run? List the due times of a task",
        parameters=[*PAGE_PARAMETERS, *SPAN],
        responses=paged(DueSerializer),
    )
    def get(self, request: Request, p: str, t: str) -> Response:
        found = due.timeline(
            tasks.find(self.project_id, t),
            since=moment(request, "since"),
            until=moment(request, "until"),
            **page_of(request, "since", "until"),
        )
        return Response(
            {"items": [entry.document() for entry in found.items], "next_cursor": found.next_cursor}
        )
