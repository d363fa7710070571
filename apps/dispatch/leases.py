"""Leases of attempts: claim, renew, hold, release, complete (runs.md §6.2).

Everything works on batches, one statement for all; the operations of the spec are batches of one. Called inside
a write transaction. The fence is repeated in the WHERE of every write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection

from apps.core import bulk, db, ids
from apps.core.streams import Actor
from apps.dispatch import fence as fences
from apps.dispatch.errors import LeaseDurationInvalid, LeaseFenceRejected
from apps.dispatch.fence import KEY_COLUMNS, LeaseFence, WorkerFence
from apps.dispatch.models import LEASE_MAX_MS, LEASE_MIN_MS, RunDispatchLease, Worker
from apps.runs.machine import Change
from apps.runs.models import Run, RunAttempt
from apps.tasks import placement

_CLAIMED = [
    "run_id", "status", "version", "lease_generation", "worker_id", "worker_session_id", "worker_generation",
    "lease_token", "acquired_at", "renewed_at", "expires_at", "released_at", "release_reason", "completed_at",
    "updated_at",
]  # fmt: skip
# The new row wins only over a lease that is free or has expired, and only at the generation that was read.
_TAKE = (
    "ON CONFLICT (attempt_id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in _CLAIMED)
    + " WHERE run_dispatch_leases.lease_generation = excluded.lease_generation - 1"
    " AND (run_dispatch_leases.status = 'released' OR (run_dispatch_leases.status = 'leased'"
    " AND run_dispatch_leases.expires_at <= excluded.acquired_at))"
)


@dataclass(frozen=True)
class Wanted:
    """A claimed attempt that somebody wants to carry, with its run; `token` only to replay an earlier claim."""

    run: Run
    attempt: RunAttempt
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Outcome:
    """`claimed`, `idempotent`, or why not: `worker_unavailable`, `not_eligible`, `leased`, `capacity_exhausted`."""

    result: str
    fence: LeaseFence | None = None
    change: Change | None = None


def duration(ttl_ms: int) -> timedelta:
    """A lease's length; raises LeaseDurationInvalid outside 5,000 … 600,000 ms."""
    if not LEASE_MIN_MS <= ttl_ms <= LEASE_MAX_MS:
        raise LeaseDurationInvalid
    return timedelta(milliseconds=ttl_ms)


def current(worker: Worker | None, fence: WorkerFence, now: datetime) -> bool:
    """Whether this session still is the worker, with a live lease of its own; draining counts."""
    return (
        worker is not None
        and (worker.session_id, worker.generation) == (fence.session_id, fence.generation)
        and worker.status in ("online", "draining")
        and worker.lease_expires_at > now
    )


@dataclass(frozen=True)
class Seen:
    """What decides a claim besides its runs: the stored leases, locked, and how many the worker holds."""

    stored: Callable[[], list[RunDispatchLease]]
    held: Callable[[], list[int]]


def look(worker_id: str, run_ids: Iterable[UUID], now: datetime) -> Seen:
    """Reads for a claim of these runs; the literals keep the partial indexes usable."""
    where, params = bulk.among(RunAttempt, "run_id", run_ids)
    where = f"attempt_id IN (SELECT id FROM run_attempts WHERE {where} AND status = 'claimed')"
    at = RunDispatchLease._meta.get_field("expires_at").get_db_prep_value(now, connection)
    held = "SELECT COUNT(*) FROM run_dispatch_leases WHERE worker_id = %s AND status = 'leased' AND expires_at > %s"
    return Seen(
        bulk.select_rows_later(RunDispatchLease, where, params, lock=True),
        bulk.select_values_later(held, [worker_id, at]),
    )


def claim(
    worker: Worker | None, fence: WorkerFence, wanted: Sequence[Wanted], ttl_ms: int, now: datetime
) -> dict[UUID, Outcome]:
    """Takes leases, in the order of the checks of runs.md §6.2; an outcome for each attempt.

    The caller stores the changes of the claimed ones in this transaction.
    """
    seen = look(fence.worker_id, [want.run.id for want in wanted], now)
    plan = plan_claims(worker, fence, wanted, seen, ttl_ms, now)
    taken = store_claims(plan, now)()
    lost = {pk: Outcome("leased") for pk, outcome in plan.items() if outcome.change and pk not in taken}
    return {**plan, **lost}


def plan_claims(
    worker: Worker | None,
    fence: WorkerFence,
    wanted: Sequence[Wanted],
    seen: Seen,
    ttl_ms: int,
    now: datetime,
) -> dict[UUID, Outcome]:
    """What each claim would come to, before anything is written."""
    expires_at = now + duration(ttl_ms)
    if not current(worker, fence, now):
        return {want.attempt.id: Outcome("worker_unavailable") for want in wanted}
    assert worker is not None
    stored = {lease.attempt_id: lease for lease in seen.stored()}
    (held,) = seen.held()
    outcomes: dict[UUID, Outcome] = {}
    for want in wanted:
        lease = stored.get(want.attempt.id)
        outcome = _refusal(worker, fence, want, lease, held, now)
        if outcome is None:
            generation = lease.lease_generation + 1 if lease else 1
            version = lease.version + 1 if lease else 0
            made = LeaseFence(
                want.attempt.id, want.run.id, fence, generation, version, now, expires_at,
                want.token or ids.token(),
            )  # fmt: skip
            outcome = Outcome("claimed", made, _tell(want, made, lease, now))
            held += 1
        outcomes[want.attempt.id] = outcome
    return outcomes


def store_claims(plan: Mapping[UUID, Outcome], now: datetime) -> Callable[[], set[UUID]]:
    """Writes the planned leases; the attempts it really took, when it is called for."""
    rows = [
        (
            fence.attempt_id, fence.run_id, "leased", fence.version, fence.lease_generation,
            fence.worker.worker_id, fence.worker.session_id, fence.worker.generation, fence.token, now, now,
            fence.expires_at, None, None, None, now,
        )
        for outcome in plan.values()
        if outcome.change is not None and (fence := outcome.fence) is not None
    ]  # fmt: skip
    return bulk.insert_or_update_later(RunDispatchLease, ["attempt_id", *_CLAIMED], rows, _TAKE)


def _refusal(
    worker: Worker, fence: WorkerFence, want: Wanted, lease: RunDispatchLease | None, held: int, now: datetime
) -> Outcome | None:
    run, attempt = want.run, want.attempt
    eligible = (
        run.execution_owner == "runtime"
        and run.cancel_requested_at is None
        and run.status in ("queued", "dispatching")
        and attempt.status == "claimed"
        and attempt.run_id == run.id
    )
    if not eligible:
        return Outcome("not_eligible")
    if lease is not None:
        if lease.run_id != run.id:
            raise LeaseFenceRejected("run_mismatch")
        if lease.status == "leased" and lease.expires_at > now:
            stored = fences.of_lease(lease)
            same = stored.worker == fence and want.token is not None and stored.token == want.token
            return Outcome("idempotent", stored) if same else Outcome("leased")
        if lease.status == "completed":
            return Outcome("not_eligible")
    if worker.status != "online" or worker.available_slots < 1:
        return Outcome("worker_unavailable")
    if run.requires and not placement.fits(run.requires, worker.labels):
        return Outcome("worker_unavailable")
    if held >= worker.max_concurrent_runs:
        return Outcome("capacity_exhausted")
    return None


def _tell(want: Wanted, made: LeaseFence, lease: RunDispatchLease | None, now: datetime) -> Change:
    change = Change(want.run, want.attempt)
    actor = Actor("worker", made.worker.worker_id)
    attempt_id = ids.text(made.attempt_id)
    payload = {"attempt_id": attempt_id, "lease_generation": made.lease_generation}
    key = f"run-dispatch:{attempt_id}:{made.lease_generation}:claimed"
    if want.run.status == "queued":
        # The clock of the machine that made the run may be ahead of ours.
        change.move_run("dispatching", max(now, want.run.created_at), actor, payload=payload, dedupe_key=key)
    else:
        before = "released" if lease is not None and lease.status == "released" else "expired"
        change.tell("run.dispatch_reclaimed", actor, {**payload, "previous_state": before}, key)
    return change


def renew(held: Sequence[LeaseFence], ttl_ms: int, now: datetime) -> Mapping[UUID, LeaseFence]:
    """Extends live leases in one statement, their versions included; returns those that were kept.

    Writes no event. An expired or replaced lease is not in the answer.
    """
    ttl = duration(ttl_ms)
    # A clock that was set back must not renew a lease to before it was acquired.
    at = {fence.attempt_id: max(now, fence.acquired_at) for fence in held}
    kept = bulk.update_rows(
        RunDispatchLease,
        [*KEY_COLUMNS, "version"],
        ["version", "renewed_at", "expires_at", "updated_at"],
        [
            (*fence.key(), fence.version, fence.version + 1, renewed, renewed + ttl, renewed)
            for fence in held
            for renewed in [at[fence.attempt_id]]
        ],
        condition="t.expires_at > v.c9",
    )
    return {
        fence.attempt_id: fence.renewed(at[fence.attempt_id] + ttl)
        for fence in held
        if fence.attempt_id in kept
    }


def complete(held: Sequence[LeaseFence], now: datetime) -> set[UUID]:
    """Ends leases whose attempts end in this transaction; nobody replaced them, expired or not.

    A settle may come late: what counts is that no other session took the lease over (runs.md §6.2, D9).
    """
    return complete_later(held, now)()


def complete_later(held: Sequence[LeaseFence], now: datetime) -> Callable[[], set[UUID]]:
    """The same, with the answer when it is called for."""
    return bulk.update_rows_later(
        RunDispatchLease,
        KEY_COLUMNS,
        ["status", "version", "completed_at", "updated_at"],
        [(*fence.key(), "completed", fence.version + 1, now, now) for fence in held],
    )


def release(held: Sequence[LeaseFence], reason: str, now: datetime) -> set[UUID]:
    """Gives leases back; their attempts stay as they are."""
    return release_later(held, reason, now)()


def release_later(held: Sequence[LeaseFence], reason: str, now: datetime) -> Callable[[], set[UUID]]:
    """The same, with the answer when it is called for."""
    return bulk.update_rows_later(
        RunDispatchLease,
        KEY_COLUMNS,
        ["status", "version", "released_at", "release_reason", "updated_at"],
        [(*fence.key(), "released", fence.version + 1, now, reason, now) for fence in held],
    )


def unreplaced(held: Sequence[LeaseFence]) -> dict[UUID, datetime]:
    """The attempts whose lease nobody took over, with its expiry; locked until the transaction ends.

    That is enough for settling late; work needs an expiry that lies ahead.
    """
    return unreplaced_later(held)()


def unreplaced_later(held: Sequence[LeaseFence]) -> Callable[[], dict[UUID, datetime]]:
    """The same, with the answer when it is called for."""
    if not held:
        return dict
    known = {fence.attempt_id: fence for fence in held}
    where, params = bulk.among(RunDispatchLease, "attempt_id", known)
    found = bulk.select_rows_later(RunDispatchLease, f"{where} AND status = 'leased'", params, lock=True)
    return lambda: {
        row.attempt_id: row.expires_at
        for row in found()
        if fences.difference(row, known[row.attempt_id], version=None) is None
    }


def check(fence: LeaseFence, now: datetime, *, worker: bool = True) -> RunDispatchLease:
    """The lease behind a fence; raises LeaseFenceRejected with the first reason (runs.md §6.2)."""
    lease = db.lock(RunDispatchLease.objects.filter(attempt_id=fence.attempt_id)).first()
    reason = fences.difference(lease, fence, version=fence.version)
    if reason is None and lease is not None:
        if lease.status != "leased":
            reason = "not_leased"
        elif lease.expires_at <= now:
            reason = "lease_expired"
        elif worker and not current(
            Worker.objects.filter(pk=fence.worker.worker_id).first(), fence.worker, now
        ):
            reason = "worker_unavailable"
    if reason is not None or lease is None:
        raise LeaseFenceRejected(reason or "missing")
    return lease
