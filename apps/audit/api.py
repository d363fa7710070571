"""The audit trail of a project, newest first, and its proof."""

from __future__ import annotations

from typing import Any

from django.urls import path
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    PAGE_PARAMETERS,
    ActorSerializer,
    MomentField,
    ProjectEndpoint,
    StrictSerializer,
    describe,
    page_of,
    page_response,
    paged,
)
from apps.audit import queries
from apps.audit.models import AuditEntry


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


class Trail(ProjectEndpoint):
    permissions = {"GET": "policy.manage"}
    while_archived = frozenset({"GET", "HEAD"})

    @describe(
        summary="List the audit trail",
        parameters=[*PAGE_PARAMETERS, OpenApiParameter("action", str, description="Only this action.")],
        responses=paged(AuditEntrySerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        action = request.query_params.get("action") or None
        page = queries.page(self.project_id, action=action, **page_of(request, "action"))
        return page_response(page, represent)


class Proof(ProjectEndpoint):
    permissions = {"GET": "policy.manage"}
    while_archived = frozenset({"GET", "HEAD"})

    @describe(summary="Verify the audit trail", responses=VerdictSerializer)
    def get(self, request: Request, p: str) -> Response:
        verdict = queries.verify(self.project_id)
        body: dict[str, Any] = {"valid": verdict.valid, "checked_through_sequence": verdict.checked_through}
        if not verdict.valid:
            body["first_broken_sequence"] = verdict.first_broken
            body["expected_previous_hash"] = verdict.expected_previous_hash
            body["actual_previous_hash"] = verdict.actual_previous_hash
        return Response(body)


urlpatterns = [
    path("projects/<str:p>/audit", Trail.as_view()),
    path("projects/<str:p>/audit/verify", Proof.as_view()),
]
