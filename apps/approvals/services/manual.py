"""Closing an action by hand where evidence cannot: a person, their sign-in strong and of just now (approvals.md §7.5).

There is no way to try again or to clear the barrier: doing it once more takes a new request.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from apps.approvals import errors, gate, snapshots, values
from apps.approvals.action_records import DECISIONS, STRONG, fact_digest
from apps.approvals.contract import RecoverySnapshot
from apps.approvals.models import ApprovedActionRecoveryAuthorization
from apps.approvals.models.recovery import RECENT_MS
from apps.approvals.services import recovery
from apps.approvals.services.recovery import Resolution, Resolved
from apps.core import clock
from apps.core.fields import MAX_VERSION
from apps.core.throttle import Throttle
from apps.identity.principals import Principal
from apps.projects.policy import Grant

PERMISSION = "approval.recover"

recoveries = Throttle(60)

_REFUSAL = errors.InvalidApprovedActionRecovery


@dataclass(frozen=True)
class Recovery:
    """What a person says became of an action; raises InvalidApprovedActionRecovery."""

    dispatch_id: str
    expected_execution_version: int
    expected_recovery_version: int
    mutation_id: str
    decision: str
    reason_code: str
    evidence_digest: str | None = None

    def __post_init__(self) -> None:
        values.identifier("dispatch_id", self.dispatch_id, 64, _REFUSAL)
        values.whole("expected_execution_version", self.expected_execution_version, 0, MAX_VERSION, _REFUSAL)
        values.whole("expected_recovery_version", self.expected_recovery_version, 0, MAX_VERSION, _REFUSAL)
        values.identifier("mutation_id", self.mutation_id, 64, _REFUSAL)
        values.one_of("decision", self.decision, DECISIONS, _REFUSAL)
        values.identifier("reason_code", self.reason_code, 64, _REFUSAL)
        if self.evidence_digest is not None:
            values.digest("evidence_digest", self.evidence_digest, _REFUSAL)


def recover(principal: Principal, wish: Recovery, *, origin: str) -> Resolved:
    """Closes one execution by the word of the authenticated person; the time is the server's.

    The same wish again is `resolved` again, with sign-in and role asked for anew; a different one finds it
    `already_terminal`. Raises PrincipalExpired, RecoveryHumanRequired, RecoveryStrongAuthenticationRequired,
    TooManyDecisions, RecoveryNotFound, RecoveryAuthorizationDenied and what `recovery.resolve` raises.
    """
    now = clock.now()
    require_strong(principal, now)
    if wait := recoveries.full(principal.subject.id):
        raise errors.TooManyDecisions(retry_after=wait)
    recoveries.count(principal.subject.id)
    found = snapshots.find(wish.dispatch_id)
    if found is None:
        raise errors.RecoveryNotFound
    admitted = _admit(principal, found, origin)
    return recovery.resolve(
        Resolution(
            dispatch_id=wish.dispatch_id,
            execution_version=wish.expected_execution_version,
            control_version=wish.expected_recovery_version,
            mutation_id=wish.mutation_id,
            decision=wish.decision,
            reason_code=wish.reason_code,
            resolved_at=now,
            evidence_digest=wish.evidence_digest,
            fact=_fact(principal, found, wish, admitted, now),
            admitted=admitted,
        )
    )


def require_strong(principal: Principal, now: datetime) -> None:
    """A person who proved it with a second factor within five minutes; reads nothing.

    Raises PrincipalExpired, RecoveryHumanRequired, RecoveryStrongAuthenticationRequired.
    """
    principal.require_active(now)
    if principal.subject.type != "user":
        raise errors.RecoveryHumanRequired
    age_ms = clock.to_ms(now) - clock.to_ms(principal.authenticated_at)
    if principal.assurance not in STRONG or age_ms > RECENT_MS:
        raise errors.RecoveryStrongAuthenticationRequired


def _admit(principal: Principal, found: RecoverySnapshot, origin: str) -> Grant:
    try:
        admitted = gate.admit(principal.subject, found.dispatch.project_id, PERMISSION, gate.ALLOWED)
    except errors.ApprovalPolicyDenied as error:
        raise errors.RecoveryAuthorizationDenied from error
    if admitted.fence is None or admitted.fence.binding_version is None:
        raise errors.RecoveryAuthorizationDenied
    return Grant(admitted.actor, admitted.project_id, PERMISSION, admitted.fence, origin)


def _fact(
    principal: Principal, found: RecoverySnapshot, wish: Recovery, admitted: Grant, now: datetime
) -> ApprovedActionRecoveryAuthorization:
    assert admitted.fence is not None and admitted.fence.binding_version is not None
    fact = ApprovedActionRecoveryAuthorization(
        dispatch_id=found.dispatch.pk,
        project_id=found.dispatch.project_id,
        mutation_id=wish.mutation_id,
        resolved_by_id=principal.subject.id,
        authentication_id=principal.authentication_id,
        assurance=str(principal.assurance),
        authenticated_at=principal.authenticated_at,
        project_version=admitted.fence.project_version,
        binding_version=admitted.fence.binding_version,
        authorized_at=now,
    )
    fact.fact_digest = fact_digest(fact)
    return fact
