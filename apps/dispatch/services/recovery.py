"""Runs under way that have no attempt any more (runs.md §9.2); those that have one are their node's sessions'."""

from __future__ import annotations

from uuid import UUID

from apps.core import clock, db
from apps.core.db import write_transaction
from apps.core.streams import Actor
from apps.dispatch import recovery
from apps.runs.machine import Change, Failure
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt
from apps.runs.services import places, writes

ATTEMPT_MISSING = Failure("RECOVERY_ATTEMPT_MISSING")
ACTOR = Actor("reconciler", "recovery")


def settle_page(
    after: recovery.Position | None = None, limit: int = recovery.PAGE
) -> recovery.Position | None:
    """Loses what has no attempt; returns where the next page begins, None behind the last or in an overflow.

    Several attempts are left as they are: the run's page and `doctor` show them.
    """
    page = recovery.under_way(after=after, limit=limit)
    for candidate in page.candidates:
        if not candidate.attempts:
            settle_missing(candidate.run_id)
    return page.next_cursor if page.truncated else None


@write_transaction
def settle_missing(run_id: UUID) -> bool:
    """Loses a run under way that has no active attempt; False where it changed meanwhile."""
    tasks = places.lock_tasks(Run.objects.filter(pk=run_id).values_list("task_id", flat=True))
    run = db.lock(Run.objects.filter(pk=run_id, status__in=["dispatching", "running"])).first()
    if run is None or RunAttempt.objects.filter(run=run, status__in=sorted(ACTIVE_ATTEMPT)).exists():
        return False
    now = clock.now()
    change = Change(run)
    at = max([now, *(time for time in (run.created_at, run.started_at) if time is not None)])
    change.move_run("lost", at, ACTOR, failure=ATTEMPT_MISSING)
    writes.write_one(change, now)
    places.refill(tasks.values())
    return True
