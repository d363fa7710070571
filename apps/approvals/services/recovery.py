"""The store of recovery: look up, claim, record a finding, resolve (approvals.md §7.2).

Recovery never carries anything out. The lease of a control only keeps two from probing at once; what counts is the
one conditional write of `executing` at its version, which completion and recovery compete for (§7.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.approvals import errors, gate, snapshots, values
from apps.approvals.action_records import (
    DECISIONS,
    ENDS,
    FINDINGS,
    FOR_PEOPLE,
    VERIFIED,
    check_authorization,
    check_resolution,
)
from apps.approvals.contract import ENDED, HeldControl, RecoverySnapshot
from apps.approvals.models import (
    ApprovedActionExecution,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
)
from apps.approvals.services import ending
from apps.approvals.services.fencing import NO_LEASE, check_claim, move_control, move_execution
from apps.approvals.transactions import kept
from apps.core import db
from apps.core.fields import MAX_VERSION
from apps.projects.policy import Grant

LEASE_MS = 30_000
AUTOMATIC, HUMAN = "automatic_evidence", "human"

_REFUSAL = errors.InvalidApprovedActionRecovery


@dataclass(frozen=True)
class Claimed:
    """What a claim came to: `claimed`, or why not."""

    status: str
    snapshot: RecoverySnapshot | None = None


@dataclass(frozen=True)
class Found:
    """A finding that settles nothing; `retry_at` exactly where looking again may help."""

    mutation_id: str
    finding: str
    result_code: str
    observed_at: datetime
    retry_at: datetime | None = None
    evidence_digest: str | None = None

    def __post_init__(self) -> None:
        values.identifier("mutation_id", self.mutation_id, 64, _REFUSAL)
        values.one_of("finding", self.finding, FINDINGS, _REFUSAL)
        values.identifier("result_code", self.result_code, 64, _REFUSAL)
        values.moment("observed_at", self.observed_at, _REFUSAL)
        if self.evidence_digest is not None:
            values.digest("evidence_digest", self.evidence_digest, _REFUSAL)
        if self.finding in VERIFIED:
            raise _REFUSAL.field("finding", "What is verified is resolved.")
        if (self.retry_at is None) != (self.finding in FOR_PEOPLE):
            raise _REFUSAL.field("retry_at", "Not with this finding.")
        if (
            self.retry_at is not None
            and values.moment("retry_at", self.retry_at, _REFUSAL) <= self.observed_at
        ):
            raise _REFUSAL.field("retry_at", "Must be later.")


@dataclass(frozen=True)
class Resolution:
    """How an execution is closed: by evidence (`held`), or by a person (`fact` and `admitted`)."""

    dispatch_id: str
    execution_version: int
    control_version: int
    mutation_id: str
    decision: str
    reason_code: str
    resolved_at: datetime
    evidence_digest: str | None = None
    held: HeldControl | None = None
    fact: ApprovedActionRecoveryAuthorization | None = None
    admitted: Grant | None = None

    def __post_init__(self) -> None:
        values.identifier("dispatch_id", self.dispatch_id, 64, _REFUSAL)
        values.whole("expected_execution_version", self.execution_version, 0, MAX_VERSION, _REFUSAL)
        values.whole("expected_recovery_version", self.control_version, 0, MAX_VERSION, _REFUSAL)
        values.identifier("mutation_id", self.mutation_id, 64, _REFUSAL)
        values.one_of("decision", self.decision, DECISIONS, _REFUSAL)
        values.identifier("reason_code", self.reason_code, 64, _REFUSAL)
        values.moment("resolved_at", self.resolved_at, _REFUSAL)
        if self.evidence_digest is not None:
            values.digest("evidence_digest", self.evidence_digest, _REFUSAL)
        by_evidence = self.held is not None and self.decision in VERIFIED.values() and self.evidence_digest
        if not by_evidence and (self.held is not None or self.fact is None or self.admitted is None):
            raise _REFUSAL.field("source", "Neither evidence nor a person.")

    @property
    def source(self) -> str:
        """On whose word."""
        return HUMAN if self.held is None else AUTOMATIC

    @property
    def actor(self) -> tuple[str, str] | None:
        """The person, if one did it."""
        return None if self.admitted is None else self.admitted.actor.pair


@dataclass(frozen=True)
class Resolved:
    """`resolved` (again, for the same resolution), `already_terminal` or `not_found`."""

    status: str
    snapshot: RecoverySnapshot | None = None


def claim(dispatch_id: str, owner: str, token: str, now: datetime, duration_ms: int = LEASE_MS) -> Claimed:
    """Takes the search for evidence for a while.

    The status is `claimed` (again without a write, while the lease lives), `not_found`, `resolved`,
    `manual_required`, `execution_active` (its holder may still end it), `leased` or `not_due`. Raises
    InvalidApprovedActionRecovery, RecoveryFenceRejected, RecoveryBindingConflict, RecoveryRepositoryError.
    """
    check_claim(dispatch_id, owner, token, now, duration_ms, _REFUSAL)
    return _claim(dispatch_id, owner, token, now, duration_ms)


@kept(errors.RecoveryRepositoryError)
def _claim(dispatch_id: str, owner: str, token: str, now: datetime, duration_ms: int) -> Claimed:
    found = _locked(dispatch_id)
    if found is None:
        return Claimed("not_found")
    control, row = found.control, found.execution
    if control.status in ("resolved", "manual_required"):
        return Claimed(control.status, found)
    if row.status != "executing" or row.lease_expires_at is None or row.lease_expires_at > now:
        return Claimed("execution_active", found)
    if control.lease_expires_at is not None and control.lease_expires_at > now:
        own = (control.lease_owner, control.lease_token) == (owner, token)
        return Claimed("claimed" if own else "leased", found)
    if control.next_scan_at is None or control.next_scan_at > now:
        return Claimed("not_due", found)
    expires_at = now + timedelta(milliseconds=duration_ms)
    move_control(
        control, now, errors.RecoveryFenceRejected, status="leased", next_scan_at=expires_at, lease_owner=owner,
        lease_token=token, lease_expires_at=expires_at,
    )  # fmt: skip
    return Claimed("claimed", found)


def record_finding(held: HeldControl, execution_version: int, found: Found) -> RecoverySnapshot:
    """Writes down what was seen: to be looked at again at `retry_at`, or for a person to close.

    The same call again answers with the same snapshot. Raises RecoveryFenceRejected and what `claim` raises.
    """
    values.whole("expected_execution_version", execution_version, 0, MAX_VERSION, _REFUSAL)
    return _record(held, execution_version, found)


@kept(errors.RecoveryRepositoryError)
def _record(held: HeldControl, execution_version: int, found: Found) -> RecoverySnapshot:
    snapshot = _locked(held.subject.pk)
    if snapshot is None:
        raise errors.RecoveryNotFound
    control = snapshot.control
    seen = (
        control.version, control.last_finding_mutation_id, control.last_finding, control.last_result_code,
        control.last_evidence_digest, control.updated_at, control.next_scan_at,
    )  # fmt: skip
    if seen == (
        held.generation + 1, found.mutation_id, found.finding, found.result_code, found.evidence_digest,
        found.observed_at, found.retry_at,
    ):  # fmt: skip
        return snapshot
    if control.status != "leased" or control.execution_version != execution_version:
        raise errors.RecoveryFenceRejected
    move_control(
        control,
        found.observed_at,
        errors.RecoveryFenceRejected,
        held,
        status="manual_required" if found.retry_at is None else "armed",
        next_scan_at=found.retry_at,
        **_finding(control, found.mutation_id, found.finding, found.result_code, found.evidence_digest),
        **NO_LEASE,
    )
    return snapshot


@kept(errors.RecoveryRepositoryError)
def resolve(wish: Resolution) -> Resolved:
    """Closes an execution for good, with its resolution and, for a person, the fact of their sign-in and role.

    What has ended otherwise is never changed (`already_terminal`). Raises RecoveryFenceRejected, MutationConflict for
    a mutation id of another resolution, RecoveryBindingConflict, RecoveryRepositoryError.
    """
    if wish.admitted is not None:
        db.lock_shared("projects", "id", wish.admitted.project_id)
    found = _locked(wish.dispatch_id)
    if found is None:
        return Resolved("not_found")
    if found.resolution is not None:
        return Resolved("resolved" if _same(found, wish) else "already_terminal", found)
    if found.execution.status in ENDED:
        return Resolved("already_terminal", found)
    _check_fence(found, wish)
    if ApprovedActionRecoveryResolution.objects.filter(mutation_id=wish.mutation_id).exists():
        raise errors.MutationConflict
    return Resolved("resolved", _close(found, wish))


def _check_fence(found: RecoverySnapshot, wish: Resolution) -> None:
    row, control = found.execution, found.control
    if (row.version, control.version) != (wish.execution_version, wish.control_version):
        raise errors.RecoveryFenceRejected
    if row.started_at is None or row.lease_expires_at is None:
        raise errors.RecoveryFenceRejected
    if wish.resolved_at < row.lease_expires_at or wish.resolved_at < row.started_at:
        raise errors.RecoveryFenceRejected
    if wish.held is not None:
        holder = (control.status, control.lease_owner, control.lease_token, control.version)
        if holder != ("leased", wish.held.owner, wish.held.token, wish.held.generation):
            raise errors.RecoveryFenceRejected
        return
    _check_fact(found, wish)


def _check_fact(found: RecoverySnapshot, wish: Resolution) -> None:
    """That the fact is about this resolution, and that project and role are still what it says."""
    fact, admitted = wish.fact, wish.admitted
    assert fact is not None and admitted is not None
    told = (
        fact.dispatch_id, fact.project_id, fact.mutation_id, ("user", fact.resolved_by_id), fact.authorized_at,
    )  # fmt: skip
    if told != (
        wish.dispatch_id, found.execution.project_id, wish.mutation_id, wish.actor, wish.resolved_at,
    ):  # fmt: skip
        raise errors.RecoveryFenceRejected
    fence = admitted.fence
    if fence is None or (fence.project_version, fence.binding_version) != (
        fact.project_version, fact.binding_version,
    ):  # fmt: skip
        raise errors.RecoveryFenceRejected
    try:
        gate.hold(admitted)
    except errors.PolicyFenceConflict as error:
        raise errors.RecoveryFenceRejected from error


def _close(found: RecoverySnapshot, wish: Resolution) -> RecoverySnapshot:
    row, control, at = found.execution, found.control, wish.resolved_at
    move_execution(
        row, at, errors.RecoveryFenceRejected, status=ENDS[wish.decision], result_mutation_id=wish.mutation_id,
        last_result_code=wish.reason_code, completed_at=at, **NO_LEASE,
    )  # fmt: skip
    seen: dict[str, Any] = {}
    if wish.held is not None:
        [finding] = [name for name, decision in VERIFIED.items() if decision == wish.decision]
        seen = _finding(control, wish.mutation_id, finding, wish.reason_code, wish.evidence_digest)
    move_control(
        control, at, errors.RecoveryFenceRejected, wish.held, status="resolved", next_scan_at=None,
        execution_version=row.version, resolution_mutation_id=wish.mutation_id, **seen, **NO_LEASE,
    )  # fmt: skip
    resolution = ApprovedActionRecoveryResolution(
        dispatch=control,
        project_id=row.project_id,
        execution_version=wish.execution_version,
        mutation_id=wish.mutation_id,
        source=wish.source,
        decision=wish.decision,
        evidence_digest=wish.evidence_digest,
        reason_code=wish.reason_code,
        resolved_by_type=wish.actor[0] if wish.actor else None,
        resolved_by_id=wish.actor[1] if wish.actor else None,
        resolved_at=at,
    )
    check_resolution(resolution).save(force_insert=True)
    if wish.fact is not None:
        check_authorization(wish.fact).save(force_insert=True)
    closed = RecoverySnapshot(found.dispatch, row, control, resolution, wish.fact)
    if wish.admitted is None:
        ending.tell(closed, recovered=True)
    else:
        ending.tell(closed, recovered=True, actor=wish.admitted.actor.pair, origin=wish.admitted.origin)
    return closed


def _same(found: RecoverySnapshot, wish: Resolution) -> bool:
    """All but the time, which is the server's: it is that of the first application."""
    row = found.resolution
    assert row is not None
    fact = found.authorization
    return (
        row.mutation_id,
        row.source,
        row.decision,
        row.evidence_digest,
        row.reason_code,
        (row.resolved_by_type, row.resolved_by_id) if row.resolved_by_id else None,
        row.execution_version,
        None if fact is None else fact.resolved_by_id,
    ) == (
        wish.mutation_id,
        wish.source,
        wish.decision,
        wish.evidence_digest,
        wish.reason_code,
        wish.actor,
        wish.execution_version,
        None if wish.fact is None else wish.fact.resolved_by_id,
    )


def _locked(dispatch_id: str) -> RecoverySnapshot | None:
    """As `snapshots.find`; whoever writes a control has locked its execution first."""
    db.lock(ApprovedActionExecution.objects.filter(pk=dispatch_id)).first()
    return snapshots.find(dispatch_id)


def _finding(
    control: ApprovedActionRecoveryControl, mutation_id: str, finding: str, code: str, digest: str | None
) -> dict[str, Any]:
    return {
        "finding_count": min(control.finding_count + 1, MAX_VERSION),
        "last_finding_mutation_id": mutation_id,
        "last_finding": finding,
        "last_result_code": code,
        "last_evidence_digest": digest,
    }
