"""Leases that ran out: decided from the record, never against a node that is up (runs.md §6.4)."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import datetime
from uuid import UUID

from apps.core import bulk, clock, db, wakeups
from apps.core.db import write_transaction
from apps.core.errors import DomainError
from apps.core.streams import Actor
from apps.dispatch import fence as fences
from apps.dispatch import leases
from apps.dispatch.errors import ExpiryTargetInconsistent
from apps.dispatch.models import RunDispatchLease
from apps.dispatch.services import completion, nodes
from apps.dispatch.services.passes import not_before
from apps.runs.machine import Change
from apps.runs.models import ACTIVE_ATTEMPT, ENDED, Run, RunAttempt
from apps.runs.retries import LOST_CANCELLED
from apps.runs.services import places, writes

PAGE = 16
LEASE_EXPIRED = "REMOTE_RUN_LEASE_EXPIRED"
ACTOR = Actor("reconciler", "lease-expiry")

logger = logging.getLogger("qinglong.dispatch")


def list_expired(
    now: datetime, *, after: tuple[datetime, UUID] | None = None, limit: int = PAGE
) -> list[RunDispatchLease]:
    """Leases that ran out, oldest first; `limit` is 1–64."""
    if not 1 <= limit <= 64:
        raise ValueError("limit is 1 to 64")
    rows = RunDispatchLease.objects.filter(status="leased", expires_at__lte=now)
    if after is not None:
        rows = rows.filter(expires_at__gte=after[0]).exclude(expires_at=after[0], attempt_id__lte=after[1])
    return list(rows.order_by("expires_at", "attempt_id")[:limit])


def expire_page(
    after: tuple[datetime, UUID] | None = None, limit: int = PAGE
) -> tuple[datetime, UUID] | None:
    """Decides one page of leases; returns where the next page begins, None behind the last.

    Rings where a node that is up must look itself. One that cannot be decided is logged and left for a person. A
    machine whose clock is off judges nobody.
    """
    if nodes.is_off(skew := db.clock_skew_ms()):
        logger.error("this machine's clock is %d ms ahead of the database's: it judges no leases", skew)
        return None
    rows = list_expired(clock.now(), after=after, limit=limit)
    for row in rows:
        try:
            expire(row.attempt_id)
        except DomainError as error:
            logger.error("an expired lease could not be decided: %s", error.code)
    return (rows[-1].expires_at, rows[-1].attempt_id) if len(rows) == limit else None


@write_transaction
def expire(attempt_id: UUID) -> str:
    """Decides one lease, atomically with its release.

    Returns `not_found`, `already_expired`, `not_due`, `node_up` (its node is to inspect it first),
    `terminal_released`, `cancellation_pending`, `unstarted_released` or `lost`. Raises ExpiryTargetInconsistent.
    """
    now = clock.now()
    run_id = RunDispatchLease.objects.filter(pk=attempt_id).values_list("run_id", flat=True).first()
    if run_id is None:
        return "not_found"
    tasks = places.lock_tasks(Run.objects.filter(pk=run_id).values_list("task_id", flat=True))
    run = db.lock(Run.objects.filter(pk=run_id)).first()
    attempt = RunAttempt.objects.filter(pk=attempt_id).first()
    row = db.lock(RunDispatchLease.objects.filter(pk=attempt_id)).get()
    if row.status != "leased":
        return "already_expired"
    if row.expires_at > now:
        return "not_due"
    if run is None or attempt is None or run.execution_owner != "runtime" or attempt.run_id != run.pk:
        raise ExpiryTargetInconsistent
    if attempt.worker_id not in (None, row.worker_id):
        raise ExpiryTargetInconsistent
    others = RunAttempt.objects.filter(run=run, status__in=sorted(ACTIVE_ATTEMPT)).exclude(pk=attempt_id)
    if attempt.status in ACTIVE_ATTEMPT and others.exists():
        raise ExpiryTargetInconsistent
    result = _decide(run, attempt)
    if (
        result in ("lost", "cancellation_pending")
        and nodes.is_up(row.worker.node_id, now)
        and attempt.status != "claimed"
    ):
        wakeups.ring("runs")
        return "node_up"
    leases.release([fences.of_lease(row)], "lease_expired", now)
    if result == "lost":
        change = Change(run, attempt)
        key = f"run-lease-expiry:{attempt.pk}:{row.lease_generation}"
        at = not_before(run, attempt, now)
        completion.lose(change, at, LEASE_EXPIRED, ACTOR, (f"{key}:attempt", f"{key}:run"))
        writes.write_one(change, now)
        places.refill(tasks.values())
    elif result == "unstarted_released":
        wakeups.ring("runs")
    return result


@write_transaction
def end_unheld(limit: int = 64) -> int:
    """Ends runs that were to be stopped and that no lease holds any more; returns how many.

    What had not begun is cancelled; what had begun on a node that fell silent is lost and over (runs.md §10.2).
    """
    now = clock.now()
    # Literals, so that the index over the few runs being stopped is used: without it this reads all attempts.
    stopping = bulk.select_values_later(
        "SELECT id FROM runs WHERE cancel_requested_at IS NOT NULL"
        " AND NOT (status IN ('succeeded', 'failed', 'cancelled', 'timed_out')) LIMIT 10000"
    )()
    if not stopping:
        return 0
    found = Run.objects.filter(
        pk__in=stopping,
        status__in=["dispatching", "running"],
        cancel_requested_at__isnull=False,
        attempts__status__in=sorted(ACTIVE_ATTEMPT),
    ).exclude(attempts__lease__status="leased")
    ids = list(found.order_by("pk").values_list("pk", flat=True)[:limit])
    if not ids:
        return 0
    tasks = places.lock_tasks(Run.objects.filter(pk__in=ids).values_list("task_id", flat=True))
    runs = list(db.lock(found.filter(pk__in=ids).order_by("pk")))
    active = RunAttempt.objects.filter(run_id__in=ids, status__in=sorted(ACTIVE_ATTEMPT))
    attempts: dict[UUID, list[RunAttempt]] = defaultdict(list)
    for row in active:
        attempts[row.run_id].append(row)
    # Of several nobody can tell which one is meant.
    changes = [_ended(run, attempts[run.pk][0], now) for run in runs if len(attempts[run.pk]) == 1]
    writes.write(changes, now)
    places.refill(tasks.values())
    return len(changes)


def _ended(run: Run, attempt: RunAttempt, now: datetime) -> Change:
    change = Change(run, attempt)
    at = not_before(run, attempt, now)
    if attempt.status != "claimed":
        completion.lose(change, at, LEASE_EXPIRED, ACTOR)
        change.move_run("cancelled", at, ACTOR, failure=LOST_CANCELLED)
        return change
    change.move_attempt("cancelled", at, ACTOR, failure=completion.CANCELLED)
    to, failure = completion.outcome(run, 1)
    change.move_run(to, at, ACTOR, failure=failure)
    return change


def _decide(run: Run, attempt: RunAttempt) -> str:
    if run.status in ENDED or run.status == "lost" or attempt.status not in ACTIVE_ATTEMPT:
        return "terminal_released"
    if run.cancel_requested_at is not None:
        return "cancellation_pending"
    if attempt.status == "claimed" and run.status == "dispatching":
        return "unstarted_released"
    if attempt.status in ("starting", "running") and run.status in ("dispatching", "running"):
        return "lost"
    raise ExpiryTargetInconsistent
