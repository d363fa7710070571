"""Stored rows as checked values: a row that breaks the rules of new input is damaged storage (approvals.md §2)."""

from __future__ import annotations

from dataclasses import dataclass

from apps.approvals import values
from apps.approvals.errors import ApprovalUnavailable, InvalidApprovalValue
from apps.approvals.models import ApprovalRequest, ApprovedActionDispatch
from apps.core import ids
from apps.core.errors import InvalidInput
from apps.identity.principals import PolicySubject
from apps.projects import permissions
from apps.projects.models import MAX_QUORUM


@dataclass(frozen=True)
class Action:
    """What an approval is about; raises InvalidApprovalValue and, for the permission, InvalidInput."""

    permission: str
    action_type: str
    action_ref: str
    action_digest: str
    preview_digest: str

    def __post_init__(self) -> None:
        permissions.find(self.permission)
        values.identifier("action_type", self.action_type, 64)
        values.identifier("action_ref", self.action_ref, 255)
        values.digest("action_digest", self.action_digest)
        values.digest("preview_digest", self.preview_digest)


def action_of(row: ApprovalRequest | ApprovedActionDispatch) -> Action:
    """The action of a request or dispatch."""
    return Action(row.permission, row.action_type, row.action_ref, row.action_digest, row.preview_digest)


def requester_of(row: ApprovalRequest | ApprovedActionDispatch) -> PolicySubject:
    """Who asked."""
    return PolicySubject(row.requested_by_type, row.requested_by_id)


def check_request(row: ApprovalRequest) -> ApprovalRequest:
    """The row, checked as new input would be; raises InvalidInput."""
    values.identifier("id", row.pk, 64)
    if not ids.is_text_id(row.project_id, 128):
        raise InvalidInput.field("project_id", "Not a project id.")
    action_of(row)
    requester_of(row)
    values.one_of("risk", row.risk, values.RISKS)
    requested_at = values.moment("requested_at", row.requested_at)
    expires_at = values.moment("expires_at", row.expires_at)
    life = (expires_at - requested_at).total_seconds() * 1000
    values.whole("longest_life_ms", row.longest_life_ms, 1, 2**53)
    values.whole("quorum", row.quorum, 1, MAX_QUORUM)
    if not 0 < life <= row.longest_life_ms:
        raise InvalidApprovalValue.field("expires_at", "Not a possible time.")
    _check_decision(row)
    _check_consumption(row)
    expected = {
        "pending": (1, None, False),
        "approved": (2, "approved", False),
        "rejected": (2, "rejected", False),
        "consumed": (3, "approved", True),
    }.get(row.state)
    if (row.version, row.decision, row.consumption_id is not None) != expected:
        raise InvalidApprovalValue.field("state", "Version, state and decision do not fit together.")
    return row


def _check_decision(row: ApprovalRequest) -> None:
    fields = (
        row.decision_id, row.decision, row.decision_reason_code, row.decided_by_type, row.decided_by_id, row.decided_at,
    )  # fmt: skip
    if all(field is None for field in fields):
        return
    values.identifier("decision_id", row.decision_id, 64)
    values.one_of("decision", row.decision, values.VERDICTS)
    values.identifier("reason_code", row.decision_reason_code, 64)
    decider = PolicySubject(row.decided_by_type or "", row.decided_by_id or "")
    decided_at = values.moment("decided_at", row.decided_at)
    if decider.type != "user" or decider == requester_of(row):
        raise InvalidApprovalValue.field("decided_by", "Not somebody who may decide.")
    if not row.requested_at <= decided_at < row.expires_at:
        raise InvalidApprovalValue.field("decided_at", "Not a possible time.")


def _check_consumption(row: ApprovalRequest) -> None:
    fields = (
        row.consumption_id, row.dispatch_id, row.consumed_by_type, row.consumed_by_id, row.consumed_at,
    )  # fmt: skip
    if all(field is None for field in fields):
        return
    values.identifier("consumption_id", row.consumption_id, 64)
    values.identifier("dispatch_id", row.dispatch_id, 64)
    PolicySubject(row.consumed_by_type or "", row.consumed_by_id or "")
    consumed_at = values.moment("consumed_at", row.consumed_at)
    if row.decided_at is None or not row.decided_at <= consumed_at < row.expires_at:
        raise InvalidApprovalValue.field("consumed_at", "Not a possible time.")


def check_dispatch(row: ApprovedActionDispatch) -> ApprovedActionDispatch:
    """The row, checked as new input would be; raises InvalidInput."""
    values.identifier("dispatch_id", row.pk, 64)
    values.identifier("approval_request_id", row.approval_request_id, 64)
    if not ids.is_text_id(row.project_id, 128):
        raise InvalidInput.field("project_id", "Not a project id.")
    action_of(row)
    requester_of(row)
    consumer = PolicySubject(row.consumed_by_type, row.consumed_by_id)
    values.moment("created_at", row.created_at)
    if (
        consumer.type not in ("system", "worker")
        or row.state != "pending"
        or row.approval_request_version != 3
    ):
        raise InvalidApprovalValue.field("state", "Not a possible dispatch.")
    return row


def sound(row: ApprovalRequest) -> ApprovalRequest:
    """A stored request; raises ApprovalUnavailable where it is damaged."""
    try:
        return check_request(row)
    except InvalidInput as error:
        raise ApprovalUnavailable from error


def sound_dispatch(row: ApprovedActionDispatch) -> ApprovedActionDispatch:
    """A stored dispatch; raises ApprovalUnavailable where it is damaged."""
    try:
        return check_dispatch(row)
    except InvalidInput as error:
        raise ApprovalUnavailable from error
