"""How far an approved action has come, and closing it by hand, over HTTP."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    ActorSerializer,
    MomentField,
    StrictSerializer,
    describe,
    etag,
    only_parameters,
    read_body,
)
from apps.approvals import queries
from apps.approvals.action_records import DECISIONS, FINDINGS
from apps.approvals.api.views import ORIGIN, ApprovalEndpoint
from apps.approvals.errors import DispatchStateConflict, RecoveryHumanRequired, RecoveryNotFound
from apps.approvals.models import ApprovedActionRecoveryControl, ApprovedRunReceipt
from apps.approvals.queries import EXECUTION_STATUSES, SeenExecution
from apps.approvals.services.manual import Recovery, recover
from apps.core.errors import NotFound

SOURCES = ("automatic_evidence", "human")
CONTROL_STATUSES = tuple(ApprovedActionRecoveryControl.Status.values)


class ReceiptSerializer(StrictSerializer):
    """That the action was done: written with its effect, in one transaction."""

    resource_type = serializers.CharField()
    resource_id = serializers.CharField()
    result_code = serializers.CharField()
    evidence_digest = serializers.CharField()
    finished_at = MomentField()


class ResolutionSerializer(StrictSerializer):
    """How recovery closed it, and on whose word."""

    # The framework takes declared fields off the class: its own `source` is not this one.
    source = serializers.ChoiceField(choices=SOURCES)  # type: ignore[assignment]
    decision = serializers.ChoiceField(choices=DECISIONS)
    reason_code = serializers.CharField()
    evidence_digest = serializers.CharField(allow_null=True)
    resolved_by = ActorSerializer(allow_null=True)
    resolved_at = MomentField()


class RecoverySerializer(StrictSerializer):
    """Where the search for evidence stands; there behind the start barrier. `manual_required` waits for a person."""

    status = serializers.ChoiceField(choices=CONTROL_STATUSES)
    version = serializers.IntegerField()
    next_scan_at = MomentField(allow_null=True)
    finding_count = serializers.IntegerField()
    last_finding = serializers.ChoiceField(choices=FINDINGS, allow_null=True)
    last_finding_code = serializers.CharField(allow_null=True)
    resolution = ResolutionSerializer(allow_null=True)


class ExecutionSerializer(StrictSerializer):
    """How far an approved action has come. `status` is as it stands now: behind the barrier with a lease that ran
    out it is `recovery_required`."""

    dispatch_id = serializers.CharField()
    approval_id = serializers.CharField()
    status = serializers.ChoiceField(choices=EXECUTION_STATUSES)
    version = serializers.IntegerField()
    attempt_count = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    next_attempt_at = MomentField(allow_null=True)
    started_at = MomentField(allow_null=True)
    completed_at = MomentField(allow_null=True)
    result_code = serializers.CharField(allow_null=True)
    created_at = MomentField()
    updated_at = MomentField()
    receipt = ReceiptSerializer(allow_null=True)
    recovery = RecoverySerializer(allow_null=True)


def represent_execution(seen: SeenExecution) -> dict[str, Any]:
    """An execution without owner and token of its lease, and without anybody's sign-in."""
    row = seen.execution
    document = {
        "dispatch_id": row.dispatch_id,
        "approval_id": row.dispatch.approval_request_id,
        "status": seen.status,
        "result_code": row.last_result_code,
        "receipt": _receipt(getattr(row.dispatch, "receipt", None)),
        "recovery": _recovery(getattr(row, "control", None)),
    }
    plain = (
        "version", "attempt_count", "max_attempts", "next_attempt_at", "started_at", "completed_at", "created_at",
        "updated_at",
    )  # fmt: skip
    return dict(ExecutionSerializer({**document, **{name: getattr(row, name) for name in plain}}).data)


def _receipt(row: ApprovedRunReceipt | None) -> dict[str, Any] | None:
    if row is None:
        return None
    names = ("resource_type", "resource_id", "result_code", "evidence_digest", "finished_at")
    return {name: getattr(row, name) for name in names}


def _recovery(row: ApprovedActionRecoveryControl | None) -> dict[str, Any] | None:
    if row is None:
        return None
    closed, resolution = getattr(row, "resolution", None), None
    if closed is not None:
        names = ("source", "decision", "reason_code", "evidence_digest", "resolved_at")
        resolution = {name: getattr(closed, name) for name in names} | {
            "resolved_by": {"type": closed.resolved_by_type, "id": closed.resolved_by_id}
            if closed.resolved_by_id
            else None
        }
    names = ("status", "version", "next_scan_at", "finding_count", "last_finding")
    return {name: getattr(row, name) for name in names} | {
        "last_finding_code": row.last_result_code,
        "resolution": resolution,
    }


class RecoverSerializer(StrictSerializer):
    """What somebody says became of the action; the same `mutation_id` finds the same word."""

    decision = serializers.ChoiceField(choices=DECISIONS)
    reason_code = serializers.CharField(max_length=64)
    mutation_id = serializers.CharField(max_length=64)
    expected_execution_version = serializers.IntegerField(min_value=0, max_value=2_147_483_647)
    expected_recovery_version = serializers.IntegerField(min_value=0, max_value=2_147_483_647)
    evidence_digest = serializers.CharField(max_length=64, required=False, allow_null=True)


class Execution(ApprovalEndpoint):
    permissions = {"GET": "project.read"}

    @describe(summary="Read how far an approved action has come", responses=ExecutionSerializer)
    def get(self, request: Request, id: str) -> Response:
        only_parameters(request)
        return _answer(id)


class ByHand(ApprovalEndpoint):
    permissions = {"POST": "approval.recover"}

    def require(self, needed: str) -> None:
        """Only people close an action by hand; for others than members of the project there is nothing here."""
        if self.principal.subject.type != "user":
            super().require("project.read")
            raise RecoveryHumanRequired
        super().require(needed)

    @describe(
        summary="Close an approved action by hand",
        request=RecoverSerializer,
        responses={200: ExecutionSerializer},
    )
    def post(self, request: Request, id: str) -> Response:
        given = read_body(RecoverSerializer, request.data)
        found = queries.execution_of(id)
        if found is None:
            raise RecoveryNotFound
        wish = Recovery(dispatch_id=found.execution.dispatch_id, **given)
        done = recover(self.principal, wish, origin=ORIGIN)
        if done.status == "not_found":
            raise RecoveryNotFound
        if done.status == "already_terminal":
            raise DispatchStateConflict
        return _answer(id)


def _answer(request_id: str) -> Response:
    found = queries.execution_of(request_id)
    if found is None:
        raise NotFound
    return etag(Response(represent_execution(found)), found.execution.version)
