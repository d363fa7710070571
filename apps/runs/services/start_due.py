"""Starting many tasks at once, as a scheduler does: one statement per table, whatever the number of starts.

The rules are those of `start_run`; what the caller vouches for (rights, an active project, an enabled task) is
not asked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from apps.core import bulk, db, wakeups
from apps.core.errors import DomainError
from apps.projects.policy import Grant
from apps.runs.machine import Change
from apps.runs.models import Run, RunAttempt, Skip
from apps.runs.services import door, places, retrying
from apps.runs.services.start import CLUSTER, Skipped, Wish, prepare, request_digest, skipped, start_run
from apps.runs.services.writes import RunEvents
from apps.tasks.models import Task

_RUN = [field.attname for field in Run._meta.concrete_fields]
_ATTEMPT = [field.attname for field in RunAttempt._meta.concrete_fields]


@dataclass(frozen=True)
class DueStart:
    """One start that is due. `key` is the idempotency key that makes it happen once."""

    task_id: UUID
    trigger_type: str
    trigger_id: UUID
    scheduled_for: datetime
    key: str
    input: Mapping[str, Any] | None = None


Outcome = Run | Skip | DomainError


def start_due(
    actor_id: str, starts: Sequence[DueStart], tasks: Mapping[UUID, Task], now: datetime
) -> list[Outcome]:
    """Carries out the starts in their order and answers each with its run, the record of a skip, or a refusal.

    Joins the caller's transaction, in which the tasks are locked, enabled and in active projects; their revisions
    come along. Where a task needs an approval the answer is the record that it is to be asked for. A start whose key
    is used up answers with the run that used it. Skips are not stored: the caller does it with its own.
    """
    free, in_the_way = _places(tasks)
    outcomes: list[Outcome] = []
    changes: list[Change] = []
    for start in starts:
        task = tasks[start.task_id]
        wish = _wish(actor_id, start, task)
        try:
            if task.requires_approval:
                asked = door.to_be_asked(
                    task, trigger_type=start.trigger_type, trigger_id=start.trigger_id, actor_id=actor_id,
                    due=start.scheduled_for, now=now,
                )  # fmt: skip
                outcomes.append(asked)
            elif task.concurrency == Task.Concurrency.REPLACE:
                outcomes.append(_replacing(wish, start))
            elif task.concurrency == Task.Concurrency.SKIP and free[task.pk] <= 0:
                outcomes.append(skipped(wish, task, in_the_way[task.pk], now))
            else:
                change = prepare(wish, task, now, has_place=free[task.pk] > 0)
                free[task.pk] -= 1
                in_the_way.setdefault(task.pk, change.run.pk)
                changes.append(change)
                outcomes.append(change.run)
        except DomainError as error:
            outcomes.append(error)
    used_up = _insert(changes, now)
    if any(change.run.holds_place for change in changes):
        wakeups.ring(CLUSTER)
    places.hand_on_after_commit({change.run.task_id for change in changes if not change.run.holds_place})
    return [used_up.get(outcome.pk, outcome) if isinstance(outcome, Run) else outcome for outcome in outcomes]


def _places(tasks: Mapping[UUID, Task]) -> tuple[dict[UUID, int], dict[UUID, UUID]]:
    """How many places each task has left, and the oldest run with a place of each that has any.

    One question: places are left without the task's lock, so that the answer to a second one may be another.
    """
    rows = Run.objects.filter(task_id__in=list(tasks), holds_place=True).order_by("-pk")
    found = list(rows.values_list("task_id", "pk"))
    taken = Counter(task_id for task_id, _pk in found)
    return {pk: places.capacity(task) - taken[pk] for pk, task in tasks.items()}, dict(found)


def _wish(actor_id: str, start: DueStart, task: Task) -> Wish:
    grant = Grant.system(task.project_id, "run.start", actor_id)
    given = start.input or None
    return Wish(
        grant, start.trigger_type, given, (), None, start.key, request_digest(task.pk, given),
        start.scheduled_for, start.trigger_id, None, None,
    )  # fmt: skip


def _replacing(wish: Wish, start: DueStart) -> Outcome:
    """A start that stops others first goes the way of a single one; refused, it has stopped none."""
    with db.savepoint():
        result = start_run(
            wish.grant,
            start.task_id,
            trigger_type=start.trigger_type,
            input=wish.input,
            idempotency_key=start.key,
            scheduled_for=start.scheduled_for,
            trigger_id=start.trigger_id,
        )
    return result.skip if isinstance(result, Skipped) else result.run


def _insert(changes: Sequence[Change], now: datetime) -> dict[UUID, Run]:
    """Stores the new runs; those whose key was used before are answered with the run of that key."""
    if not changes:
        return {}
    rows = [[getattr(change.run, name) for name in _RUN] for change in changes]
    written = bulk.insert_or_update(Run, _RUN, rows, "ON CONFLICT DO NOTHING")
    kept = [change for change in changes if change.run.pk in written]
    bulk.insert_rows(
        RunAttempt, _ATTEMPT, [[getattr(change.attempt, name) for name in _ATTEMPT] for change in kept]
    )
    retrying.admit([change.run for change in kept], now)
    RunEvents.insert([(change.run.pk, 0, change.events) for change in kept], now)
    used_up = [change.run for change in changes if change.run.pk not in written]
    if not used_up:
        return {}
    before = Run.objects.filter(idempotency_key__in=[run.idempotency_key for run in used_up])
    known = {(run.project_id, run.idempotency_key): run for run in before}
    return {run.pk: known[run.project_id, run.idempotency_key] for run in used_up}
