"""Filing a request whose action is given by its digests (approvals.md §4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from apps.approvals import gate, registry, values
from apps.approvals.errors import InvalidApprovalValue, MutationConflict
from apps.approvals.models import ApprovalRequest
from apps.approvals.records import Action, action_of, check_request, requester_of, sound
from apps.approvals.services.lapsing import CHANGED
from apps.approvals.transactions import tried
from apps.audit import services as audit
from apps.core import clock, ids, participants
from apps.core.errors import InvalidInput
from apps.identity.principals import PolicySubject
from apps.projects import approval_policy
from apps.projects.policy import Grant


@dataclass(frozen=True)
class NewRequest:
    """What is asked for. `life_ms` is from filing to expiry, at most what the action type allows.

    Raises InvalidApprovalValue, and InvalidInput for subject, project or permission.
    """

    id: str
    project_id: str
    action: Action
    risk: str
    requested_by: PolicySubject
    life_ms: int

    def __post_init__(self) -> None:
        values.identifier("id", self.id, 64)
        if not ids.is_text_id(self.project_id, 128):
            raise InvalidInput.field("project_id", "Not a project id.")
        values.one_of("risk", self.risk, values.RISKS)
        kind = registry.find(self.action.action_type)
        if self.action.permission != kind.permission:
            raise InvalidApprovalValue.field("permission", "Not the permission of this action.")
        values.whole("expires_in_ms", self.life_ms, 1, kind.longest_life_ms)


@dataclass(frozen=True)
class Filed:
    """The request; `existing` where the same one had been filed before, whatever became of it since."""

    request: ApprovalRequest
    existing: bool


def create(wish: NewRequest, *, origin: str = gate.ORIGIN) -> Filed:
    """Files a request, or finds the same one.

    Only who may not act alone may ask: any other effect of the policy is ApprovalPolicyDenied. Raises
    MutationConflict where the id was used for anything else, PolicyFenceConflict and ApprovalUnavailable.
    """
    admitted = admit(wish.requested_by, wish.project_id, wish.action.action_type)
    return _create(wish, admitted, origin)


def admit(subject: PolicySubject, project_id: str, action_type: str) -> Grant:
    """The policy gate of filing; raises ApprovalPolicyDenied."""
    kind = registry.find(action_type)
    return gate.admit(subject, project_id, kind.permission, kind.filed_on)


@tried
def _create(wish: NewRequest, admitted: Grant, origin: str) -> Filed:
    found = find(wish.id)
    if found is not None:
        if not _same(found, wish):
            raise MutationConflict
        return Filed(found, existing=True)
    gate.hold(admitted)
    return insert(wish, origin)


def insert(wish: NewRequest, origin: str) -> Filed:
    """Writes a request that is not there yet, inside the caller's transaction, behind `gate.hold`."""
    kind = registry.find(wish.action.action_type)
    now = clock.now()
    request = ApprovalRequest(
        id=wish.id,
        project_id=wish.project_id,
        permission=wish.action.permission,
        action_type=wish.action.action_type,
        action_ref=wish.action.action_ref,
        action_digest=wish.action.action_digest,
        preview_digest=wish.action.preview_digest,
        risk=wish.risk,
        requested_by_type=wish.requested_by.type,
        requested_by_id=wish.requested_by.id,
        requested_at=now,
        expires_at=now + timedelta(milliseconds=wish.life_ms),
        longest_life_ms=kind.longest_life_ms,
        quorum=approval_policy.of(wish.project_id).quorum,
    )
    check_request(request).save(force_insert=True)
    audit.record(
        wish.project_id,
        actor=wish.requested_by.pair,
        action="approval.requested",
        subject=("approval", wish.id),
        metadata={
            "action_type": wish.action.action_type,
            "action_digest": wish.action.action_digest,
            "risk": wish.risk,
            "expires_at_ms": clock.to_ms(request.expires_at),
        },
        origin=origin,
    )
    participants.note(CHANGED, wish.id)
    return Filed(request, existing=False)


def find(request_id: str) -> ApprovalRequest | None:
    """The stored request, checked, or None; raises ApprovalUnavailable for a damaged one."""
    row = ApprovalRequest.objects.filter(pk=request_id).first()
    return None if row is None else sound(row)


def _same(row: ApprovalRequest, wish: NewRequest) -> bool:
    """All but the time, which is the server's: it is that of the first filing."""
    life = row.expires_at - row.requested_at
    return (
        row.project_id == wish.project_id
        and action_of(row) == wish.action
        and row.risk == wish.risk
        and requester_of(row) == wish.requested_by
        and life == timedelta(milliseconds=wish.life_ms)
    )
