"""The audit trails of projects and of the instance, newest first; their proof; their export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    ADMINISTRATOR,
    PAGE_PARAMETERS,
    ActorSerializer,
    Endpoint,
    MomentField,
    ProjectEndpoint,
    StrictSerializer,
    describe,
    only_parameters,
    page_of,
    page_response,
    paged,
)
from apps.audit import queries
from apps.audit.models import AuditEntry
from apps.audit.queries import Wanted
from apps.audit.services import INSTANCE
from apps.runs.api.views import moment


class AuditEntrySerializer(StrictSerializer):
    """One act of a principal."""

    id = serializers.UUIDField()
    sequence = serializers.IntegerField()
    actor = ActorSerializer()
    on_behalf_of = serializers.CharField(allow_null=True)
    origin = serializers.CharField()
    action = serializers.CharField()
    subject = ActorSerializer()
    metadata = serializers.DictField()
    occurred_at = MomentField()
    previous_hash = serializers.CharField(allow_null=True)
    hash = serializers.CharField()


class VerdictSerializer(StrictSerializer):
    """What a walk along the chain found; the last three members only where it is broken."""

    valid = serializers.BooleanField()
    checked_through_sequence = serializers.IntegerField()
    first_broken_sequence = serializers.IntegerField(required=False)
    expected_previous_hash = serializers.CharField(required=False, allow_null=True)
    actual_previous_hash = serializers.CharField(required=False, allow_null=True)


def represent(entry: AuditEntry) -> Any:
    """An entry as the API shows it."""
    document = {
        "id": entry.id,
        "sequence": entry.sequence,
        "actor": {"type": entry.actor_type, "id": entry.actor_id},
        "on_behalf_of": entry.on_behalf_of,
        "origin": entry.origin,
        "action": entry.action,
        "subject": {"type": entry.subject_type, "id": entry.subject_id},
        "metadata": entry.metadata,
        "occurred_at": entry.occurred_at,
        "previous_hash": entry.previous_hash,
        "hash": entry.hash,
    }
    return AuditEntrySerializer(document).data


FILTERS = (
    OpenApiParameter("action", str, description="Only this action."),
    OpenApiParameter("actor", str, description="Only acts of the subject with this id."),
    OpenApiParameter("since", datetime, description="RFC 3339, included."),
    OpenApiParameter("until", datetime, description="RFC 3339, not included."),
)
NAMES = ("action", "actor", "since", "until")


def _wanted(request: Request) -> Wanted:
    return Wanted(
        action=request.query_params.get("action") or None,
        actor=request.query_params.get("actor") or None,
        since=moment(request, "since"),
        until=moment(request, "until"),
    )


def _list(scope: str, request: Request) -> Response:
    wanted = _wanted(request)
    return page_response(queries.page(scope, wanted, **page_of(request, *NAMES)), represent)


def _proof(scope: str) -> Response:
    verdict = queries.verify(scope)
    body: dict[str, Any] = {"valid": verdict.valid, "checked_through_sequence": verdict.checked_through}
    if not verdict.valid:
        body["first_broken_sequence"] = verdict.first_broken
        body["expected_previous_hash"] = verdict.expected_previous_hash
        body["actual_previous_hash"] = verdict.actual_previous_hash
    return Response(body)


def exported(entries: Iterator[AuditEntry], name: str) -> StreamingHttpResponse:
    """A download of entries as JSON lines, oldest first, made while it is sent."""
    lines = (json.dumps(represent(entry), ensure_ascii=False) + "\n" for entry in entries)
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingHttpResponse(lines, content_type="application/x-ndjson", headers=headers)


def _export(scope: str, request: Request) -> HttpResponseBase:
    only_parameters(request, *NAMES)
    return exported(queries.walk(scope, _wanted(request)), "audit.jsonl")


_LINES = {(200, "application/x-ndjson"): OpenApiTypes.BINARY}


class Trail(ProjectEndpoint):
    permissions = {"GET": "policy.manage"}
    while_archived = frozenset({"GET", "HEAD"})

    @describe(
        summary="List the audit trail",
        parameters=[*PAGE_PARAMETERS, *FILTERS],
        responses=paged(AuditEntrySerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        return _list(self.project_id, request)


class Proof(ProjectEndpoint):
    permissions = {"GET": "policy.manage"}
    while_archived = frozenset({"GET", "HEAD"})

    @describe(summary="Verify the audit trail", responses=VerdictSerializer)
    def get(self, request: Request, p: str) -> Response:
        return _proof(self.project_id)


class Export(ProjectEndpoint):
    permissions = {"GET": "policy.manage"}
    while_archived = frozenset({"GET", "HEAD"})

    @describe(summary="Export the audit trail as JSON lines", parameters=[*FILTERS], responses=_LINES)
    def get(self, request: Request, p: str) -> HttpResponseBase:
        return _export(self.project_id, request)


class InstanceTrail(Endpoint):
    permissions = {"GET": ADMINISTRATOR}

    @describe(
        summary="List the audit trail of the instance",
        description="Sign-ins, people, tokens, applications, workers; what belongs to a project is in its own trail.",
        parameters=[*PAGE_PARAMETERS, *FILTERS],
        responses=paged(AuditEntrySerializer),
    )
    def get(self, request: Request) -> Response:
        return _list(INSTANCE, request)


class InstanceProof(Endpoint):
    permissions = {"GET": ADMINISTRATOR}

    @describe(summary="Verify the audit trail of the instance", responses=VerdictSerializer)
    def get(self, request: Request) -> Response:
        return _proof(INSTANCE)


class InstanceExport(Endpoint):
    permissions = {"GET": ADMINISTRATOR}

    @describe(
        summary="Export the audit trail of the instance as JSON lines",
        parameters=[*FILTERS],
        responses=_LINES,
    )
    def get(self, request: Request) -> HttpResponseBase:
        return _export(INSTANCE, request)


urlpatterns = [
    path("projects/<str:p>/audit", Trail.as_view()),
    path("projects/<str:p>/audit/verify", Proof.as_view()),
    path("projects/<str:p>/audit/export", Export.as_view()),
    path("audit", InstanceTrail.as_view()),
    path("audit/verify", InstanceProof.as_view()),
    path("audit/export", InstanceExport.as_view()),
]
