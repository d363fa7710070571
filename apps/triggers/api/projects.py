"""Archiving and restoring projects: it stops and starts what they do by themselves."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import IF_MATCH, ProjectEndpoint, etag, if_match
from apps.projects.api import ProjectSerializer, represent
from apps.triggers import services


class ArchiveProject(ProjectEndpoint):
    permissions = {"POST": "project.manage"}
    while_archived = frozenset({"POST"})

    @extend_schema(
        summary="Archive a project: queued runs are cancelled, everything can still be read",
        parameters=[IF_MATCH],
        request=None,
        responses=ProjectSerializer,
    )
    def post(self, request: Request, p: str) -> Response:
        project = services.archive_project(self.grant, if_match(request))
        return etag(Response(represent(project)), project.version)


class RestoreProject(ProjectEndpoint):
    permissions = {"POST": "project.manage"}
    while_archived = frozenset({"POST"})

    @extend_schema(
        summary="Restore an archived project",
        parameters=[IF_MATCH],
        request=None,
        responses=ProjectSerializer,
    )
    def post(self, request: Request, p: str) -> Response:
        project = services.restore_project(self.grant, if_match(request))
        return etag(Response(represent(project)), project.version)
