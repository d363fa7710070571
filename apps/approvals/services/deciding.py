"""The one decision function, whatever way led to it: page, API, command or link (approvals.md §4.5, lessons.md D25)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from apps.approvals import errors, gate, values, voting
from apps.approvals.models import ApprovalRequest, ApprovalVote
from apps.approvals.records import check_request, requester_of, sound
from apps.approvals.services import lapsing
from apps.approvals.services.creating import find
from apps.approvals.transactions import tried
from apps.audit import services as audit
from apps.core import clock, control, db, participants, wakeups
from apps.core.jobs import CONTROL
from apps.core.throttle import Throttle
from apps.identity.principals import Principal
from apps.projects import approval_policy
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
    """The request as it is now; `existing` where the same decision had been taken before.

    It still is pending where more people must approve.
    """

    request: ApprovalRequest
    existing: bool


def decide(principal: Principal, verdict: Verdict, *, origin: str) -> Decided:
    """Approves or rejects one pending request, once; the time is the server's, that of the first application.

    Who decides is the authenticated principal and nobody else. Each word is a vote: one that rejects decides, and so
    does the last that is needed to approve (`voting`). Raises PrincipalExpired, HumanDecisionRequired,
    TooManyDecisions, ApprovalRequestNotFound, SelfDecisionRejected, ApprovalPolicyDenied, and from the transaction
    MutationConflict, RequestExpired, RequestVersionConflict, RequestStateConflict, RequestVoid, NotADecider,
    AlreadyVoted, PolicyFenceConflict or ApprovalUnavailable.
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
    if again := _again(verdict, principal):
        return again
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
    if not _vote(principal, request, verdict, now):
        _record(principal, request, "approval.voted", verdict, origin)
        participants.note(lapsing.CHANGED, request.pk)
        return Decided(request, existing=False)
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
    _record(principal, request, f"approval.{request.state}", verdict, origin)
    participants.note(lapsing.CHANGED, request.pk)
    if request.state == ApprovalRequest.State.APPROVED:
        control.soon(CONSUME)
        wakeups.ring(CONTROL)
    return Decided(request, existing=False)


def _again(verdict: Verdict, principal: Principal) -> Decided | None:
    """What the same decision came to before; raises MutationConflict where its id was used for anything else."""
    said = (principal.subject.pair, verdict.request_id, verdict.decision, verdict.reason_code)
    vote = ApprovalVote.objects.filter(decision_id=verdict.decision_id).first()
    if vote is not None:
        first = ((vote.voter_type, vote.voter_id), vote.request_id, vote.decision, vote.reason_code)
        row = ApprovalRequest.objects.get(pk=vote.request_id)
    else:
        found = ApprovalRequest.objects.filter(decision_id=verdict.decision_id).first()
        if found is None:
            return None
        row = found
        decider = (row.decided_by_type or "", row.decided_by_id or "")
        first = (decider, row.pk, row.decision or "", row.decision_reason_code or "")
    # All but the time, which is the server's.
    if first != said or verdict.expected_version != 1:
        raise errors.MutationConflict
    return Decided(sound(row), existing=True)


def _vote(principal: Principal, request: ApprovalRequest, verdict: Verdict, now: datetime) -> bool:
    """Stores the vote, behind the locks of project and request; whether it decides.

    Whoever voted and could not decide any more does not count. Raises NotADecider and AlreadyVoted.
    """
    policy = approval_policy.of(request.project_id)
    cast = list(ApprovalVote.objects.filter(request=request).order_by("voted_at", "id"))
    voter = principal.subject.id
    if any(vote.voter_id == voter for vote in cast):
        raise errors.AlreadyVoted
    vote = ApprovalVote(
        request=request,
        project_id=request.project_id,
        voter_id=voter,
        decision=verdict.decision,
        reason_code=verdict.reason_code,
        decision_id=verdict.decision_id,
        voted_at=now,
    )
    tally = voting.count(request, policy, [*cast, vote])
    if not tally.votes[-1].counts:
        raise errors.NotADecider
    vote.save(force_insert=True)
    return verdict.decision != voting.APPROVED or tally.given >= tally.needed


def _record(
    principal: Principal, request: ApprovalRequest, action: str, verdict: Verdict, origin: str
) -> None:
    audit.record(
        request.project_id,
        actor=principal.subject.pair,
        action=action,
        subject=("approval", request.pk),
        metadata={
            "reason_code": verdict.reason_code,
            "action_type": request.action_type,
            "action_digest": request.action_digest,
            "risk": request.risk,
            "requested_by": f"{request.requested_by_type}:{request.requested_by_id}",
            "assurance": str(principal.assurance),
            "authenticated_at_ms": clock.to_ms(principal.authenticated_at),
        },
        origin=origin,
    )
