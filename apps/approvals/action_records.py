"""Stored rows of execution and recovery as checked values; see `records` (approvals.md §3.3–§3.7)."""

from __future__ import annotations

import hmac
from typing import Any

from apps.approvals import digests, values
from apps.approvals.errors import (
    InvalidApprovedActionExecution,
    InvalidApprovedActionRecovery,
    InvalidApprovedActionRecoveryAuthorization,
    InvalidApprovedRunAction,
)
from apps.approvals.models import (
    ApprovedActionExecution,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
    ApprovedRunReceipt,
)
from apps.approvals.models.execution import LEASE, MAX_ATTEMPTS, MAX_LEASE_MS
from apps.approvals.models.recovery import FINDING, RECENT_MS
from apps.core import clock, ids
from apps.core.fields import MAX_VERSION
from apps.identity.principals import PolicySubject

MISSING_AND_LIKE = ("still_running", "missing", "unavailable")
FOR_PEOPLE = ("conflict", "unsupported")
VERIFIED = {"verified_succeeded": "confirm_succeeded", "verified_failed": "confirm_failed"}
FINDINGS = (*VERIFIED, *MISSING_AND_LIKE, *FOR_PEOPLE)
ENDS = {"confirm_succeeded": "succeeded", "confirm_failed": "failed", "abandon_unknown": "blocked"}
DECISIONS = tuple(ENDS)
STRONG = ("multi_factor", "hardware", "local_console")

_RESULT = {"result_mutation_id", "last_result_code"}
_OPTIONAL = (
    "eligible_at", "next_attempt_at", *LEASE, "started_at", "result_mutation_id", "last_result_code", "completed_at",
)  # fmt: skip
_SHAPES: dict[str, list[set[str]]] = {
    "pending": [{"eligible_at"}],
    "leased": [{"eligible_at", *LEASE}],
    "executing": [{"started_at", *LEASE}],
    "retry_wait": [{"eligible_at", "next_attempt_at", *_RESULT}],
    "succeeded": [{"started_at", "completed_at", *_RESULT}],
    "failed": [{"started_at", "completed_at", *_RESULT}],
    "blocked": [{"started_at", "completed_at", *_RESULT}, {"completed_at", *_RESULT}],
}
_CONTROL_SHAPES: dict[str, set[str]] = {
    "armed": {"next_scan_at"},
    "leased": {"next_scan_at", *LEASE},
    "manual_required": set(),
    "resolved": {"resolution_mutation_id"},
}


def check_execution(row: ApprovedActionExecution) -> ApprovedActionExecution:
    """The row, checked as new input would be; raises InvalidApprovedActionExecution."""
    refusal = InvalidApprovedActionExecution
    values.identifier("dispatch_id", row.dispatch_id, 64, refusal)
    if not ids.is_text_id(row.project_id, 128):
        raise refusal.field("project_id", "Not a project id.")
    values.one_of("status", row.status, tuple(_SHAPES), refusal)
    values.whole("version", row.version, 0, MAX_VERSION, refusal)
    values.whole("max_attempts", row.max_attempts, 1, MAX_ATTEMPTS, refusal)
    least = {"pending": 0, "blocked": 0}.get(row.status, 1)
    most = row.max_attempts - (row.status == "retry_wait")
    values.whole("attempt_count", row.attempt_count, least, most, refusal)
    _check_times(row, refusal)
    present = {name for name in _OPTIONAL if getattr(row, name) is not None}
    fits = present in _SHAPES[row.status]
    if row.status == "pending":
        fits = fits and (row.version, row.attempt_count) == (0, 0)
    if row.status == "leased":
        fits = fits and row.eligible_at == row.lease_expires_at
    if not fits or (row.next_attempt_at is not None and row.eligible_at != row.next_attempt_at):
        raise refusal.field("status", "Status and values do not fit together.")
    _check_lease(row, refusal)
    for name in ("result_mutation_id", "last_result_code"):
        if getattr(row, name) is not None:
            values.identifier(name, getattr(row, name), 64, refusal)
    if row.started_at is not None and not row.created_at <= row.started_at <= row.updated_at:
        raise refusal.field("started_at", "Not a possible time.")
    if row.completed_at is not None and row.completed_at != row.updated_at:
        raise refusal.field("completed_at", "Not a possible time.")
    return row


def check_control(row: ApprovedActionRecoveryControl) -> ApprovedActionRecoveryControl:
    """The row, checked; raises InvalidApprovedActionRecovery."""
    refusal = InvalidApprovedActionRecovery
    values.identifier("dispatch_id", row.dispatch_id, 64, refusal)
    values.one_of("status", row.status, tuple(_CONTROL_SHAPES), refusal)
    values.whole("execution_version", row.execution_version, 1, MAX_VERSION, refusal)
    values.whole("version", row.version, 0, MAX_VERSION, refusal)
    values.whole(
        "finding_count", row.finding_count, int(row.status == "manual_required"), MAX_VERSION, refusal
    )
    _check_times(row, refusal)
    optional = ("next_scan_at", *LEASE, "resolution_mutation_id")
    if {name for name in optional if getattr(row, name) is not None} != _CONTROL_SHAPES[row.status]:
        raise refusal.field("status", "Status and values do not fit together.")
    _check_lease(row, refusal)
    found = {getattr(row, name) is not None for name in FINDING}
    if found != {row.finding_count > 0}:
        raise refusal.field("last_finding", "Findings and their number do not fit together.")
    if row.last_finding is not None:
        values.one_of("last_finding", row.last_finding, FINDINGS, refusal)
        values.identifier("last_finding_mutation_id", row.last_finding_mutation_id, 64, refusal)
        values.identifier("last_result_code", row.last_result_code, 64, refusal)
    if row.last_evidence_digest is not None:
        values.digest("last_evidence_digest", row.last_evidence_digest, refusal)
    if row.resolution_mutation_id is not None:
        values.identifier("resolution_mutation_id", row.resolution_mutation_id, 64, refusal)
    return row


def check_resolution(row: ApprovedActionRecoveryResolution) -> ApprovedActionRecoveryResolution:
    """The row, checked; raises InvalidApprovedActionRecovery."""
    refusal = InvalidApprovedActionRecovery
    values.whole("execution_version", row.execution_version, 1, MAX_VERSION - 1, refusal)
    values.identifier("mutation_id", row.mutation_id, 64, refusal)
    values.one_of("decision", row.decision, DECISIONS, refusal)
    values.identifier("reason_code", row.reason_code, 64, refusal)
    values.moment("resolved_at", row.resolved_at, refusal)
    if row.evidence_digest is not None:
        values.digest("evidence_digest", row.evidence_digest, refusal)
    actor = (row.resolved_by_type, row.resolved_by_id)
    if row.source == "human":
        fits = actor[0] == "user" and ids.is_text_id(actor[1], 255)
    else:
        fits = (
            row.source == "automatic_evidence"
            and actor == (None, None)
            and row.decision in VERIFIED.values()
            and row.evidence_digest is not None
        )
    if not fits:
        raise refusal.field("source", "Source and actor do not fit together.")
    return row


def receipt_digest(row: ApprovedRunReceipt) -> str:
    """The evidence digest of what a receipt says."""
    return digests.of(
        digests.RECEIPT,
        {
            "schemaVersion": row.schema_version,
            "dispatchId": row.dispatch_id,
            "approvalRequestId": row.approval_request_id,
            "projectId": row.project_id,
            "actionType": row.action_type,
            "actionDigest": row.action_digest,
            "executionAttempt": row.execution_attempt,
            "executionVersion": row.execution_version,
            "startedAtMs": clock.to_ms(row.started_at),
            "idempotencyKey": row.idempotency_key,
            "outcome": row.outcome,
            "resultCode": row.result_code,
            "resourceType": row.resource_type,
            "resourceId": str(row.resource_id),
            "finishedAtMs": clock.to_ms(row.finished_at),
            "createdAtMs": clock.to_ms(row.created_at),
        },
    )


def check_receipt(row: ApprovedRunReceipt) -> ApprovedRunReceipt:
    """The row, its evidence digest worked out anew; raises InvalidApprovedRunAction for all that is wrong with it."""
    refusal = InvalidApprovedRunAction
    fixed = (row.schema_version, row.action_type, row.outcome, row.result_code, row.resource_type)
    if fixed != (1, "run.create", "succeeded", "approved_run_created", "run"):
        raise refusal.field("receipt", "Not a receipt of a created run.")
    for name in ("dispatch_id", "approval_request_id", "idempotency_key"):
        values.identifier(name, getattr(row, name), 64, refusal)
    if not ids.is_text_id(row.project_id, 128):
        raise refusal.field("project_id", "Not a project id.")
    values.digest("action_digest", row.action_digest, refusal)
    values.whole("execution_attempt", row.execution_attempt, 1, MAX_ATTEMPTS, refusal)
    values.whole("execution_version", row.execution_version, 1, MAX_VERSION, refusal)
    for name in ("started_at", "finished_at", "created_at"):
        values.moment(name, getattr(row, name), refusal)
    if not row.started_at <= row.finished_at == row.created_at or row.idempotency_key != row.dispatch_id:
        raise refusal.field("receipt", "Its values do not fit together.")
    if not hmac.compare_digest(receipt_digest(row), str(row.evidence_digest)):
        raise refusal.field("evidence_digest", "Not the digest of this receipt.")
    return row


def fact_digest(row: ApprovedActionRecoveryAuthorization) -> str:
    """The digest of what an authorization says."""
    return digests.of(
        digests.AUTHORIZATION,
        {
            "dispatchId": row.dispatch_id,
            "projectId": row.project_id,
            "mutationId": row.mutation_id,
            "resolvedByType": "user",
            "resolvedById": row.resolved_by_id,
            "authenticationId": row.authentication_id,
            "assurance": row.assurance,
            "authenticatedAtMs": clock.to_ms(row.authenticated_at),
            "projectVersion": row.project_version,
            "bindingVersion": row.binding_version,
            "authorizedAtMs": clock.to_ms(row.authorized_at),
        },
    )


def check_authorization(row: ApprovedActionRecoveryAuthorization) -> ApprovedActionRecoveryAuthorization:
    """The row, its digest worked out anew; raises InvalidApprovedActionRecoveryAuthorization."""
    refusal = InvalidApprovedActionRecoveryAuthorization
    values.identifier("mutation_id", row.mutation_id, 64, refusal)
    PolicySubject("user", row.resolved_by_id)
    values.identifier("authentication_id", row.authentication_id, 128, refusal)
    values.one_of("assurance", row.assurance, STRONG, refusal)
    values.whole("project_version", row.project_version, 1, MAX_VERSION, refusal)
    values.whole("binding_version", row.binding_version, 1, MAX_VERSION, refusal)
    age = (row.authorized_at - row.authenticated_at).total_seconds() * 1000
    if not 0 <= age <= RECENT_MS:
        raise refusal.field("authorized_at", "Not a possible time.")
    if not hmac.compare_digest(fact_digest(row), str(row.fact_digest)):
        raise refusal.field("fact_digest", "Not the digest of this authorization.")
    return row


def _check_times(row: Any, refusal: values.Refusal) -> None:
    for name in ("created_at", "updated_at"):
        values.moment(name, getattr(row, name), refusal)
    if row.updated_at < row.created_at:
        raise refusal.field("updated_at", "Not a possible time.")


def _check_lease(row: Any, refusal: values.Refusal) -> None:
    if row.lease_owner is None:
        return
    values.identifier("lease_owner", row.lease_owner, 128, refusal)
    values.identifier("lease_token", row.lease_token, 128, refusal)
    length = (
        values.moment("lease_expires_at", row.lease_expires_at, refusal) - row.updated_at
    ).total_seconds()
    if not 0 < length * 1000 <= MAX_LEASE_MS:
        raise refusal.field("lease_expires_at", "Not a possible time.")
