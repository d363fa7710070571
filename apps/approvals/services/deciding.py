"""The one decision function, whatever way led to it: page, API, command or link (approvals.md §4.5, lessons.md D25)."""

from __future__ import annotations

from dataclasses import dataclass

from apps.approvals import errors, gate, values
from apps.approvals.models import ApprovalRequest
from apps.approvals.records import check_request, requester_of, sound
from apps.approvals.services import lapsing
from apps.approvals.services.creating import find
from apps.approvals.transactions import tried
from apps.audit import services as audit
from apps.core import clock, control, db, participants, wakeups
from apps.core.jobs import CONTROL
from apps.core.throttle import Throttle
from apps.identity.principals import Principal
from apps.projects.policy import Grant

PERMISSION = "approval.decide"
CONSUME = "approvals.consume"
_USER = "user"

decisions = Throttle(60)


@dataclass(frozen=True)
class Verdict:
    """What somebody decided; raises InvalidApprovalValue."""

    request_id: str
    expected_version: int
    decision_id: str
    decision: str
    reason_code: str

    def __post_init__(self) -> None:
        values.identifier("id", self.request_id, 64)
        values.whole("expected_version", self.expected_version, 1, 3)
        values.identifier("decision_id", self.decision_id, 64)
        values.one_of("decision", self.decision, values.VERDICTS)
        values.identifier("reason_code", self.reason_code, 64)


@dataclass(frozen=True)
class Decided:
    """The request as it is now; `existing` where the same decision had been taken before."""

    request: ApprovalRequest
    existing: bool


def decide(principal: Principal, verdict: Verdict, *, origin: str) -> Decided:
    """Approves or rejects one pending request, once; the time is the server's, that of the first application.

    Who decides is the authenticated principal and nobody else. Raises PrincipalExpired, HumanDecisionRequired,
    TooManyDecisions, ApprovalRequestNotFound, SelfDecisionRejected, ApprovalPolicyDenied, and from the
    transaction MutationConflict, RequestExpired, RequestVersionConflict, RequestStateConflict, RequestVoid,
    PolicyFenceConflict or ApprovalUnavailable.
    """
    principal.require_active()
    if principal.subject.type != _USER:
        raise errors.HumanDecisionRequired
    if wait := decisions.full(principal.subject.id):
        raise errors.TooManyDecisions(retry_after=wait)
    decisions.count(principal.subject.id)
    request = find(verdict.request_id)
    if request is None:
        raise errors.ApprovalRequestNotFound
    if requester_of(request) == principal.subject:
        raise errors.SelfDecisionRejected
    admitted = gate.admit(principal.subject, request.project_id, PERMISSION, gate.ALLOWED)
    found = _decide(principal, verdict, admitted, origin)
    if isinstance(found, str):
        # What lapsed is on record by now; the refusal must not take that back.
        raise errors.RequestVoid(reason=found)
    return found


@tried
def _decide(principal: Principal, verdict: Verdict, admitted: Grant, origin: str) -> Decided | str:
    # Locks in one order everywhere: project, request, dispatch and execution. Behind them a repetition that came at
    # the same moment sees what the first one did.
    db.lock_shared("projects", "id", admitted.project_id)
    rows = ApprovalRequest.objects.filter(pk=verdict.request_id)
    request = db.lock(rows).first()
    again = ApprovalRequest.objects.filter(decision_id=verdict.decision_id).first()
    if again is not None:
        if not _same(sound(again), verdict, principal):
            raise errors.MutationConflict
        return Decided(again, existing=True)
    if request is None:
        raise errors.ApprovalRequestNotFound
    sound(request)
    now = clock.now()
    if request.expires_at <= now:
        raise errors.RequestExpired
    if request.version != verdict.expected_version:
        raise errors.RequestVersionConflict
    if request.state != ApprovalRequest.State.PENDING:
        raise errors.RequestStateConflict
    gate.hold(admitted)
    if code := lapsing.reason(request, lock=True):
        lapsing.lapse(request, code, now)
        return code
    request.version, request.state = 2, verdict.decision
    request.decision_id, request.decision = verdict.decision_id, verdict.decision
    request.decision_reason_code, request.decided_at = verdict.reason_code, now
    request.decided_by_type, request.decided_by_id = principal.subject.pair
    check_request(request)
    written = {
        name: getattr(request, name)
        for name in (
            "version", "state", "decision_id", "decision", "decision_reason_code", "decided_by_type",
            "decided_by_id", "decided_at",
        )
    }  # fmt: skip
    if rows.filter(version=verdict.expected_version, state="pending").update(**written) != 1:
        raise errors.RequestVersionConflict
    _record(principal, request, origin)
    participants.note(lapsing.CHANGED, request.pk)
    if request.state == ApprovalRequest.State.APPROVED:
        control.soon(CONSUME)
        wakeups.ring(CONTROL)
    return Decided(request, existing=False)


def _same(row: ApprovalRequest, verdict: Verdict, principal: Principal) -> bool:
    """All but the time, which is the server's."""
    return (
        row.pk == verdict.request_id
        and verdict.expected_version == 1
        and row.decision == verdict.decision
        and row.decision_reason_code == verdict.reason_code
        and (row.decided_by_type, row.decided_by_id) == principal.subject.pair
    )


def _record(principal: Principal, request: ApprovalRequest, origin: str) -> None:
    audit.record(
        request.project_id,
        actor=principal.subject.pair,
        action=f"approval.{request.state}",
        subject=("approval", request.pk),
        metadata={
            "reason_code": request.decision_reason_code,
            "action_type": request.action_type,
            "action_digest": request.action_digest,
            "risk": request.risk,
            "requested_by": f"{request.requested_by_type}:{request.requested_by_id}",
            "assurance": str(principal.assurance),
            "authenticated_at_ms": clock.to_ms(principal.authenticated_at),
        },
        origin=origin,
    )
