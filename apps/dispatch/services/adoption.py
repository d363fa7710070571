"""A new session of a node takes over what the node's dead sessions left running (architecture.md §2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from django.db.models import Exists, OuterRef, QuerySet

from apps.core import bulk, clock, db, ids
from apps.core.db import write_transaction
from apps.core.streams import Actor
from apps.dispatch import fence as fences
from apps.dispatch import leases
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.models import RunDispatchLease, Worker
from apps.dispatch.services import workers
from apps.dispatch.services.passes import Claimed, SessionReplaced, _returned
from apps.runs.machine import Change
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt
from apps.runs.services import writes

BATCH = 64
ACTOR = Actor("reconciler", "recovery")
CARRIED = (
    "EXISTS (SELECT 1 FROM run_dispatch_leases WHERE status = 'leased'"
    " AND worker_id IN (SELECT id FROM workers WHERE node_id = %s))"
)
"""Whether any place of a node, dead or alive, holds a lease, as SQL: without one there are no orphans."""
_TAKEN = [
    "worker_id", "worker_session_id", "worker_generation", "lease_generation", "lease_token", "version",
    "acquired_at", "renewed_at", "expires_at", "updated_at",
]  # fmt: skip


@write_transaction
def adopt(
    fence: WorkerFence, dead: Iterable[str], ttl_ms: int, slots: int, lives: Callable[[RunAttempt], bool]
) -> tuple[list[Claimed], bool]:
    """Takes the live leases of dead worker places of the same node, up to 64 at a time; tells whether there are more.

    An attempt that had started keeps running under a new lease (generation + 1, new token, event
    `run.dispatch_adopted`); one that had not is given back and becomes a candidate again. `lives` looks whether the
    very process on record is there: then a running one is told to be reconciled. A run with several active attempts
    is left as it is (runs.md §9.2). Raises SessionReplaced.
    """
    now = clock.now()
    expires_at = now + leases.duration(ttl_ms)
    if workers.touch(fence, slots, now) is None:
        raise SessionReplaced
    # An own lease counts too once it has expired: the loop was held up, and nobody else may take it.
    rows = _left_by(dead).exclude(worker_session_id=fence.session_id, expires_at__gt=now)
    found = list(db.skip_locked(rows.order_by("attempt_id"))[:BATCH])
    runs = {
        run.pk: run
        for run in db.lock(Run.objects.filter(pk__in=[row.run_id for row in found]).order_by("pk"))
    }
    attempts = {row.pk: row for row in RunAttempt.objects.filter(pk__in=[row.attempt_id for row in found])}
    adopted: list[tuple[Claimed, RunDispatchLease]] = []
    given_back: list[LeaseFence] = []
    changes: list[Change] = []
    for row in found:
        run, attempt = runs[row.run_id], attempts[row.attempt_id]
        old = fences.of_lease(row)
        if attempt.status not in ("starting", "running"):
            given_back.append(old)
            changes.append(_returned(run, attempt, old, "shutdown"))
            continue
        made = LeaseFence(
            attempt.pk, run.pk, fence, row.lease_generation + 1, row.version + 1, now, expires_at, ids.token()
        )
        changes.append(_told(run, attempt, made, alive=lives(attempt)))
        adopted.append((Claimed(run, attempt, made), row))
    writes.write(changes, now)
    leases.release(given_back, "shutdown", now)
    taken = _take_over(adopted, now)
    return [claimed for claimed, row in adopted if row.attempt_id in taken], len(found) == BATCH


def dead_places(node_id: str, own: str, *, held: Iterable[int]) -> list[str]:
    """Worker ids of the node whose lock nobody holds, the caller's own included (its earlier sessions are dead)."""
    alive = {f"{node_id}:{number}" for number in held}
    known = Worker.objects.filter(node_id=node_id).values_list("pk", flat=True)
    return sorted({pk for pk in known if pk not in alive} | {own})


def orphaned(node_id: str, held: Iterable[int]) -> bool:
    """Whether this node has scripts that no living session watches: then its cluster must be rung."""
    dead = dead_places(node_id, f"{node_id}:0", held=held)
    return _left_by(dead).exists()


def _left_by(places: Iterable[str]) -> QuerySet[RunDispatchLease]:
    """Leases of worker places, but for those of runs that have another active attempt."""
    others = RunAttempt.objects.filter(run_id=OuterRef("run_id"), status__in=sorted(ACTIVE_ATTEMPT))
    return RunDispatchLease.objects.filter(
        ~Exists(others.exclude(pk=OuterRef("attempt_id"))), worker_id__in=list(places), status="leased"
    )


def _take_over(adopted: list[tuple[Claimed, RunDispatchLease]], now: datetime) -> set[object]:
    return bulk.update_rows(
        RunDispatchLease,
        fences.KEY_COLUMNS,
        _TAKEN,
        [
            (
                *fences.of_lease(row).key(), made.lease.worker.worker_id, made.lease.worker.session_id,
                made.lease.worker.generation, made.lease.lease_generation, made.lease.token, made.lease.version,
                now, now, made.lease.expires_at, now,
            )
            for made, row in adopted
        ],
    )  # fmt: skip


def _told(run: Run, attempt: RunAttempt, made: LeaseFence, *, alive: bool) -> Change:
    change = Change(run, attempt)
    change.tell(
        "run.dispatch_adopted",
        Actor("worker", made.worker.worker_id),
        {"attempt_id": str(attempt.pk), "lease_generation": made.lease_generation},
        f"run-dispatch:{attempt.pk}:{made.lease_generation}:adopted",
    )
    if alive and attempt.status == run.status == "running":
        change.tell(
            "run.reconciled",
            ACTOR,
            {"status": run.status, "executor_type": attempt.executor_type, "evidence": "durable_handle"},
            f"primary-running-reconciled:{attempt.pk}:{change.next_version}",
        )
    return change
