"""Files that a run left in QINGLONG_ARTIFACTS: a list, and each as a download that no browser opens as a page."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponseBase, HttpResponseNotModified
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    PAGE_PARAMETERS,
    MomentField,
    StrictSerializer,
    only_parameters,
    page_of,
    page_response,
    paged,
)
from apps.artifacts import files, queries
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
)
from apps.artifacts.downloads import described, download, without_content
from apps.artifacts.files import OpenFile
from apps.artifacts.models import Artifact
from apps.core import ids
from apps.core.errors import NotFound


class ArtifactSerializer(StrictSerializer):
    """A file that a script left; `removed_at` says when the retention rule took it, null while it is there."""

    id = serializers.UUIDField()
    attempt = serializers.IntegerField()
    name = serializers.CharField(help_text="Relative path, made safe to show; unique in its attempt.")
    size = serializers.IntegerField(help_text="Bytes.")
    sha256 = serializers.CharField(help_text="Hexadecimal; also the ETag of the file.")
    content_type = serializers.CharField()
    created_at = MomentField()
    removed_at = MomentField(allow_null=True)


def represent(row: Artifact) -> dict[str, Any]:
    """A row as the API shows it."""
    retention = queries.retention_of(row.attempt)
    return {
        "id": row.pk,
        "attempt": row.attempt.attempt,
        "name": row.name,
        "size": row.size,
        "sha256": row.sha256,
        "content_type": row.content_type,
        "created_at": row.created_at,
        "removed_at": retention and retention.recorded_at,
    }


class RunArtifacts(OfRun):
    @extend_schema(
        summary="List the files of a run",
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("attempt", number(1, LAST_ATTEMPT), description="All attempts without."),
        ],
        responses=paged(ArtifactSerializer),
    )
    def get(self, request: Request, id: str) -> Response:
        wanted = page_of(request, "attempt")
        page = files.page(self.grant, UUID(id), attempt=attempt_of(request), **wanted)
        return page_response(page, lambda row: ArtifactSerializer(represent(row)).data)


class RunArtifact(OfRun):
    """A file as its script left it, always as a download."""

    content_negotiation_class = AnyType

    @extend_schema(
        summary="Download a file of a run",
        parameters=[
            OpenApiParameter("Range", str, OpenApiParameter.HEADER, description="One range."),
            OpenApiParameter(
                "If-Range", str, OpenApiParameter.HEADER, description="The ETag it is meant for."
            ),
            OpenApiParameter(
                "If-None-Match", str, OpenApiParameter.HEADER, description="304 where it is had."
            ),
        ],
        responses=RESPONSES,
    )
    def get(self, request: Request, id: str, artifact: str) -> HttpResponseBase:
        found = self._open(request, id, artifact)
        tag = f'"{found.row.sha256}"'
        had = request.headers.get("If-None-Match", "").split(",")
        if tag in [each.strip().removeprefix("W/") for each in had]:
            found.content.close()
            return described(HttpResponseNotModified(), found.row)
        start, end, part = 0, found.row.size, False
        if asks_range(request) and request.headers.get("If-Range", tag) == tag:
            asked = span(request, found.row.size)
            if asked is None:
                found.content.close()
                return not_satisfiable(found.row.size)
            (start, end), part = asked, True
        response = download(found, start, end)
        if part:
            response.status_code = 206
            response["Content-Range"] = f"bytes {start}-{end - 1}/{found.row.size}"
        return response

    @extend_schema(exclude=True)
    def head(self, request: Request, id: str, artifact: str) -> HttpResponseBase:
        return without_content(self._open(request, id, artifact))

    def _open(self, request: Request, id: str, artifact: str) -> OpenFile:
        only_parameters(request)
        artifact_id = ids.parse_uuid(artifact)
        if artifact_id is None:
            raise NotFound
        return files.open_file(self.grant, UUID(id), artifact_id)
