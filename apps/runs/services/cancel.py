"""Stopping: first written down, then carried out (runs.md §5.3, §18.12).

A run that never started ends here and now. One that a worker holds keeps its state: the worker reads the wish
and stops the script, and the end arrives as its receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from apps.audit import services as audit
from apps.core import clock, db, ids, wakeups
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput
from apps.core.streams import Actor
from apps.projects import policy
from apps.projects.policy import Grant
from apps.runs import queries
from apps.runs.errors import RunNotFound
from apps.runs.machine import Change, Failure
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt
from apps.runs.services import places, writes

CLUSTER = "runs"
MAX_NOTE = 200
CANCELLED = Failure("EXECUTION_CANCELLED")
NEVER_STARTED = frozenset({"created", "queued", "retry_wait", "lost", "waiting_approval"})


@dataclass(frozen=True)
class CancelResult:
    """`accepted`, `already_requested` (the first request stays) or `already_terminal`."""

    outcome: str
    run: Run


@write_transaction
def request_cancel(grant: Grant, run_id: UUID, *, reason: str = "user", note: str = "") -> CancelResult:
    """Asks for a run to be stopped; `note` has at most 200 characters and goes into the event.

    Raises InvalidInput, RunNotFound or the policy's errors.
    """
    if len(note) > MAX_NOTE or ids.has_control(note) or not ids.is_utf8(note):
        raise InvalidInput.field("note", f"At most {MAX_NOTE} characters without control characters.")
    policy.confirm(grant)
    task_id = (
        Run.objects.filter(pk=run_id, project_id=grant.project_id).values_list("task_id", flat=True).first()
    )
    if task_id is None:
        raise RunNotFound
    tasks = places.lock_tasks([task_id])
    run = db.lock(Run.objects.filter(pk=run_id)).get()
    if run.ended:
        return CancelResult("already_terminal", run)
    if run.cancel_requested_at is not None:
        return CancelResult("already_requested", run)
    now = clock.now()
    actor = Actor(grant.actor.type, grant.actor.id)
    cancel_locked([run], reason, now, actor, note=note)
    places.refill(tasks.values())
    if actor.type != "system":
        audit.record(
            run.project_id,
            actor=(grant.actor.type, grant.actor.id),
            action="run.stop_requested",
            subject=("run", str(run.pk)),
            metadata={"reason": reason},
            origin=grant.origin,
        )
    wakeups.ring(CLUSTER)
    return CancelResult("accepted", run)


def cancel_queued(task_ids: Iterable[UUID], actor: Actor, *, note: str) -> int:
    """Ends all runs of the tasks that wait, for another attempt too; returns how many. Joins the caller's transaction.

    One that a worker has leased and not started gets no `go`: the worker reads the wish first.
    """
    tasks = places.lock_tasks(task_ids)
    not_begun = Q(status__in=["queued", "retry_wait"]) | Q(
        status="dispatching", cancel_requested_at__isnull=True, pk__in=_unstarted(tasks)
    )
    waiting = list(db.lock(Run.objects.filter(not_begun, task_id__in=list(tasks)).order_by("pk")))
    cancel_locked(waiting, "policy", clock.now(), actor, note=note)
    places.refill(tasks.values())
    return len(waiting)


def _unstarted(task_ids: Iterable[UUID]) -> QuerySet[RunAttempt, UUID]:
    rows = RunAttempt.objects.filter(
        run__task_id__in=list(task_ids), run__status="dispatching", status="claimed"
    )
    return rows.values_list("run_id", flat=True)


def cancel_locked(runs: Sequence[Run], reason: str, now: datetime, actor: Actor, *, note: str = "") -> None:
    """Requests the end of runs that are locked, as their tasks are; those that never started end at once."""
    open_runs = [run for run in runs if not run.ended and run.cancel_requested_at is None]
    latest = queries.latest_attempts([run.pk for run in open_runs])
    changes = [_cancel(run, latest[run.pk], reason, now, actor, note) for run in open_runs]
    writes.write_locked(changes, now)()


def _cancel(run: Run, attempt: RunAttempt, reason: str, now: datetime, actor: Actor, note: str) -> Change:
    change = Change(run, attempt)
    at = max(now, run.created_at, run.started_at or run.created_at)
    change.request_cancel(reason, at, actor, note=note)
    if run.status in NEVER_STARTED:
        if attempt.status in ACTIVE_ATTEMPT:
            change.move_attempt("cancelled", at, actor, failure=CANCELLED)
        change.move_run("cancelled", at, actor, failure=CANCELLED)
    return change
