"""Trying runs again by themselves: the policy at admission, its reading, and what is due (runs.md §3.4, §10)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from django.db import DatabaseError

from apps.core import bulk, clock, db, wakeups
from apps.core.db import write_transaction
from apps.core.errors import DomainError
from apps.core.streams import Actor
from apps.runs import queries, retries
from apps.runs.errors import InvalidRetryPolicy, RetryTargetInconsistent
from apps.runs.machine import RUN_EDGES, Change, Failure
from apps.runs.models import Run, RunAttempt, RunRetryPolicy
from apps.runs.retries import Retries
from apps.runs.services import door, places, writes
from apps.runs.services.cancel import cancel_locked
from apps.tasks import retry
from apps.tasks.models import Task

CLUSTER = "runs"
ACTOR = Actor("reconciler", "run-retry")
PAGE = 16
# How the newest attempt of a run in these states has ended.
_AFTER = {"lost": ("lost",), "retry_wait": ("lost", "failed")}
_OUTCOMES = {
    retries.LOST_CANCELLED.code: "cancelled",
    retries.LOST_DISABLED.code: "disabled",
    retries.LOST_UNSAFE.code: "unsafe",
    retries.LOST_EXHAUSTED.code: "exhausted",
}

logger = logging.getLogger("qinglong.runs")


def check(task: Task) -> bool:
    """Whether runs of the task get a policy; raises InvalidRetryPolicy for a rule that no run may have."""
    if task.retry is None:
        return False
    try:
        retry.read(task.retry)
    except retry.RuleRefused as refused:
        raise InvalidRetryPolicy(refused.sentence) from None
    return True


def admit(runs: Iterable[Run], now: datetime) -> None:
    """Stores the policies of new runs, as their tasks say; nothing happens where none has one."""
    rows = [
        RunRetryPolicy(run=run, created_at=now, updated_at=now, **(run.task.retry or {}))
        for run in runs
        if run.may_retry
    ]
    if rows:
        RunRetryPolicy.objects.bulk_create(rows)


def load(attempts: Iterable[tuple[Run, RunAttempt]]) -> dict[UUID, Retries]:
    """What each run's policy leaves, by run; those without one are not in the answer. No query for no run."""
    pairs = {run.pk: (run, attempt) for run, attempt in attempts if run.may_retry}
    if not pairs:
        return {}
    where, params = bulk.among(RunRetryPolicy, "run_id", pairs)
    policies = bulk.select_rows_later(RunRetryPolicy, where, params)
    where, params = bulk.among(RunAttempt, "run_id", pairs)
    never = bulk.select_later(
        f"SELECT run_id, COUNT(*) FROM run_attempts WHERE {where} AND error_code = '{retries.NEVER_STARTED}'"
        " GROUP BY run_id",
        params,
    )
    where, params = bulk.among(Task, "id", {run.task_id for run, _attempt in pairs.values()})
    wanted = bulk.select_later(
        f"SELECT id, requires_approval FROM tasks WHERE {where} AND enabled AND archived_at IS NULL"
        " AND project_id IN (SELECT id FROM projects WHERE status = 'active')",
        params,
    )
    to_uuid = Run._meta.pk.to_python
    found = policies()
    counts = {to_uuid(run_id): count for run_id, count in never()}
    on = {to_uuid(task_id): bool(marked) for task_id, marked in wanted()}
    barred = _barred([run for run, _attempt in pairs.values() if on.get(run.task_id)])
    return {
        policy.run_id: Retries(
            policy,
            pairs[policy.run_id][1].attempt,
            counts.get(policy.run_id, 0),
            pairs[policy.run_id][0].task_id in on and policy.run_id not in barred,
        )
        for policy in found
    }


def _barred(runs: Sequence[Run]) -> set[UUID]:
    """Runs of tasks that need an approval which nobody approved and nobody may try again: started before the mark.

    What was approved, or started by a person alone, is so with all its attempts. No query for no run.
    """
    if not runs:
        return set()
    alone = door.started_alone(run.pk for run in runs)
    return {run.pk for run in runs if run.request_id is None and run.pk not in alone}


def sweep(after: tuple[int, UUID] | None = None, limit: int = PAGE) -> tuple[int, UUID] | None:
    """Decides one page of lost and due runs; returns where the next page begins, None behind the last.

    A run that cannot be decided is logged and left for a person; it holds up no other.
    """
    found = queries.retry_candidates(clock.now(), after=after, limit=limit)
    for candidate in found:
        decide(candidate.run_id)
    return found[-1].position if len(found) == limit else None


def decide(run_id: UUID) -> bool:
    """Whether `reconcile` went through; what went wrong is logged, and the next pass comes to it again."""
    try:
        reconcile(run_id)
    except (DomainError, DatabaseError, ValueError) as error:
        logger.error("run %s cannot be tried again: %s", run_id, getattr(error, "code", type(error).__name__))
        return False
    return True


@write_transaction
def reconcile(run_id: UUID) -> str:
    """Decides what becomes of one run that is lost or waits to be tried again (runs.md §10.2).

    Returns `not_found`, `not_eligible`, `cancelled`, `failed`, `scheduled`, `not_due` or `queued`. Raises
    RetryTargetInconsistent.
    """
    tasks = places.lock_tasks(Run.objects.filter(pk=run_id).values_list("task_id", flat=True))
    run = db.lock(Run.objects.filter(pk=run_id)).first()
    if run is None:
        return "not_found"
    if run.execution_owner != "runtime" or run.status not in _AFTER:
        return "not_eligible"
    attempt = queries.latest_attempts([run.pk]).get(run.pk)
    if attempt is None or attempt.status not in _AFTER[run.status]:
        raise RetryTargetInconsistent
    left = load([(run, attempt)]).get(run.pk)
    now = clock.now()
    change = Change(run, attempt)
    if attempt.status == "lost":
        to, failure = retries.after_loss(run, left)
        if to != "retry_wait":
            return _end(change, to, failure, now)
    if left is None:
        raise RetryTargetInconsistent
    if not left.wanted:
        task = tasks.get(run.task_id)
        barred = task is not None and task.enabled and task.archived_at is None and task.requires_approval
        note = "task needs an approval" if barred else "task or project switched off"
        cancel_locked([run], "policy", now, ACTOR, note=note)
        return "cancelled"
    if run.status == "lost":
        return _schedule(change, left, now)
    if left.policy.next_attempt_at is None:
        raise RetryTargetInconsistent
    if left.policy.next_attempt_at > now:
        return "not_due"
    return _queue(change, now, tasks)


def _end(change: Change, to: str, failure: Failure, now: datetime) -> str:
    run, attempt = change.run, change.attempt
    assert attempt is not None
    if to not in RUN_EDGES[run.status]:
        # A policy that was good when the wait began has become another: no rule says what that means.
        raise RetryTargetInconsistent
    outcome = _OUTCOMES[failure.code]
    change.move_run(
        to, _at(change, now), ACTOR, failure=failure, dedupe_key=f"run-lost-retry-{outcome}:{attempt.pk}"
    )
    writes.write_locked([change], now)()
    return to


def _schedule(change: Change, left: Retries, now: datetime) -> str:
    run, attempt = change.run, change.attempt
    assert attempt is not None
    lost_at = max(t for t in (run.created_at, attempt.created_at, attempt.finished_at) if t is not None)
    key = f"run-lost-retry-scheduled:{attempt.pk}"
    retries.wait(change, _at(change, now), ACTOR, left, lost_at + left.delay(), retries.LOST_SCHEDULED, key)
    writes.write_locked([change], now)()
    return "scheduled"


def _queue(change: Change, now: datetime, tasks: dict[UUID, Task]) -> str:
    """Queues a run anew with its next attempt; its place it gets like any other that waits for one."""
    run, attempt = change.run, change.attempt
    assert attempt is not None
    at = _at(change, now)
    kind = "lost" if attempt.status == "lost" else "failure"
    change.move_run("queued", at, ACTOR, dedupe_key=f"run-{kind}-retry-queued:{attempt.pk}")
    follower = retries.follow(change, at, ACTOR, f"run-{kind}-retry-attempt-claimed:{attempt.pk}")
    writes.write_locked([change], now)()
    follower.save(force_insert=True)
    if places.refill(tasks.values()):
        wakeups.ring(CLUSTER)
    places.hand_on_after_commit([run.task_id])
    return "queued"


def _at(change: Change, now: datetime) -> datetime:
    """Now, or the newest time on record where the clock stepped back behind it."""
    run, attempt = change.run, change.attempt
    known = (now, run.created_at, run.started_at, attempt.finished_at if attempt else None)
    return max(time for time in known if time is not None)
