"""Carrying out what is due: any number of schedulers, each due time once (api.md, "Trigger").

The lock of a task is the lock of its triggers. A pass reads which triggers are due, locks those of their tasks that
nobody holds, reads the triggers again behind the lock, and stores runs, records and next due times in one
transaction: killed anywhere, it has done all of it or nothing. The key of the run, made of trigger and due time,
backs this up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError

from apps.core import bulk, clock, db
from apps.core.db import write_transaction
from apps.core.errors import Busy, VersionConflict
from apps.projects.models import Project
from apps.runs.models import Run, Skip
from apps.runs.services.start_due import DueStart, start_due
from apps.tasks.models import Task, TaskExecutionRevision
from apps.triggers import planning, queries
from apps.triggers.models import Parked, Trigger
from apps.triggers.planning import Plan, Span
from apps.triggers.queries import DueTrigger
from apps.triggers.schedules import rule_of
from apps.triggers.services import skips

SCHEDULER = "scheduler"
BATCH = 200
# A task that somebody holds is looked at again in a moment; one that has been late for this long is waited for.
PATIENCE = timedelta(seconds=1)
_COLUMNS = ["due_at", "fire_at", "parked", "last_fire_at", "last_run_id"]

Cause = Callable[[datetime], str]

logger = logging.getLogger("qinglong.triggers")


@dataclass
class _Pass:
    """What one transaction is about to store."""

    now: datetime
    cause: Cause
    starts: list[DueStart] = field(default_factory=list)
    records: list[Skip] = field(default_factory=list)
    moved: list[tuple[Trigger, datetime]] = field(default_factory=list)
    resumed: list[tuple[Trigger, datetime, datetime]] = field(default_factory=list)


def fire_due(cause: Cause, *, limit: int = BATCH) -> int:
    """Settles up to `limit` due triggers and returns how many; 0 where others are at them.

    `cause(due)` says why a due time was missed (`runs.models.MissedCause`). Triggers that cannot be carried out
    are parked with a record and keep nobody else waiting.
    """
    found = queries.due(clock.now(), limit)
    if not found:
        return 0
    try:
        return _fire(found, cause)
    except Exception as error:
        if _concerns_all(error):
            raise
        # Something in this batch cannot be carried out: each by itself, so that only the bad one is left out.
        return sum(_fire_alone(one, cause) for one in found)


def _concerns_all(error: Exception) -> bool:
    """What says nothing about a single trigger: the pass is tried again in a moment."""
    if isinstance(error, IntegrityError | DataError):
        return False
    return isinstance(error, DatabaseError | OSError | Busy | VersionConflict)


def _fire_alone(one: DueTrigger, cause: Cause) -> int:
    try:
        return _fire([one], cause)
    except Exception as error:
        if _concerns_all(error):
            raise
        logger.error("trigger %s cannot be carried out: %s", one.trigger_id, type(error).__name__)
        return _park_broken(one)


@write_transaction
def _fire(found: Sequence[DueTrigger], cause: Cause) -> int:
    now = clock.now()
    # Behind a task that somebody holds for long there may be many that are held for no time at all.
    wait = min(one.fire_at for one in found) <= now - PATIENCE
    active = _lock_projects({one.project_id for one in found}, wait)
    tasks = _lock_tasks({one.task_id for one in found if one.project_id in active}, wait)
    work = _Pass(now, cause)
    for trigger in _due_again(found, tasks, now):
        _settle(work, trigger, tasks[trigger.task_id], active[trigger.project_id])
    _start(work, tasks)
    _complete(work)
    skips.insert(work.records)
    _store(work.moved)
    return len(work.moved)


@write_transaction
def _park_broken(one: DueTrigger) -> int:
    now = clock.now()
    tasks = _lock_tasks({one.task_id}, True)
    work = _Pass(now, lambda _due: "")
    for trigger in _due_again([one], tasks, now):
        _park(work, trigger, Parked.BROKEN)
    skips.insert(work.records)
    _store(work.moved)
    return len(work.moved)


def _lock_projects(project_ids: set[str], wait: bool) -> dict[str, bool]:
    """Those of the projects that nobody is about to change, and whether each is active; they stay so."""
    held = db.share_rows(Project._meta.db_table, "id", project_ids, wait=wait)
    rows = Project.objects.filter(pk__in=held).values_list("pk", "status")
    return {project_id: status == Project.Status.ACTIVE for project_id, status in rows}


def _lock_tasks(task_ids: set[UUID], wait: bool) -> dict[UUID, Task]:
    rows = Task.objects.filter(pk__in=task_ids).order_by("pk")
    found = {task.pk: task for task in (db.lock(rows) if wait else db.skip_locked(rows))}
    revisions = TaskExecutionRevision.objects.in_bulk({task.revision_id for task in found.values()})
    for task in found.values():
        task.revision = revisions[task.revision_id]
    return found


def _due_again(found: Sequence[DueTrigger], tasks: dict[UUID, Task], now: datetime) -> list[Trigger]:
    """The triggers as they are behind the locks; another scheduler may have been first."""
    wanted = [one.trigger_id for one in found if one.task_id in tasks]
    if not wanted:
        return []
    return list(Trigger.objects.filter(pk__in=wanted, fire_at__lte=now).order_by("fire_at", "pk"))


def _settle(work: _Pass, trigger: Trigger, task: Task, project_active: bool) -> None:
    read = _due(trigger)
    starts, records = len(work.starts), len(work.records)
    try:
        if trigger.parked is not None:
            _resume(work, trigger)
        elif reason := _standstill(task, project_active):
            _park(work, trigger, reason)
        else:
            _carry_out(work, trigger)
    except DatabaseError:
        raise
    except Exception as error:
        # Whatever it is, it is this one's: the others of the pass are not to wait for somebody to mend it.
        logger.error("trigger %s cannot be carried out: %s", trigger.pk, type(error).__name__)
        del work.starts[starts:], work.records[records:]
        trigger.due_at = read
        _park(work, trigger, Parked.BROKEN)


def _standstill(task: Task, project_active: bool) -> Parked | None:
    if not project_active:
        return Parked.PROJECT_ARCHIVED
    if task.archived_at is not None:
        return Parked.TASK_ARCHIVED
    return None if task.enabled else Parked.TASK_DISABLED


def _carry_out(work: _Pass, trigger: Trigger) -> None:
    read, now = _due(trigger), work.now
    plan: Plan = planning.plan(trigger, rule_of(trigger), now)
    for due in plan.starts:
        key = planning.key(trigger.pk, due)
        work.starts.append(DueStart(trigger.task_id, trigger.kind, trigger.pk, due, key, trigger.input))
    work.records += [
        skips.of(trigger, "missed", missed, now, cause=work.cause(missed.last)) for missed in plan.missed
    ]
    if plan.starts:
        trigger.last_fire_at = now
    planning.aim(trigger, plan.next_due)
    work.moved.append((trigger, read))


def _park(work: _Pass, trigger: Trigger, reason: Parked) -> None:
    """Leaves the trigger alone until something changes; one open record tells of all due times meanwhile."""
    read = _due(trigger)
    lasting = trigger.kind != "boot"
    found = Span(1, read, read)
    work.records.append(skips.of(trigger, reason, found, work.now, is_open=lasting))
    trigger.parked = reason if lasting else None
    trigger.fire_at = None
    work.moved.append((trigger, read))


def _resume(work: _Pass, trigger: Trigger) -> None:
    """What stood in the way is gone since `fire_at`: nothing of the time before it is started."""
    read, since = _due(trigger), trigger.fire_at
    assert since is not None
    planning.aim(trigger, rule_of(trigger).next(since))
    work.moved.append((trigger, read))
    work.resumed.append((trigger, read, since))


def _complete(work: _Pass) -> None:
    """The records of the pauses that ended: those that are open are completed, the others are made."""
    if not work.resumed:
        return
    there = skips.close_many([(trigger, since) for trigger, _read, since in work.resumed])
    for trigger, read, since in work.resumed:
        if trigger.pk not in there and (missed := planning.span(rule_of(trigger), read, since)):
            work.records.append(skips.of(trigger, str(trigger.parked), missed, work.now))
        trigger.parked = None


def _start(work: _Pass, tasks: dict[UUID, Task]) -> None:
    if not work.starts:
        return
    triggers = {trigger.pk: trigger for trigger, _read in work.moved}
    outcomes = start_due(SCHEDULER, work.starts, tasks, work.now)
    for start, outcome in zip(work.starts, outcomes, strict=True):
        trigger = triggers[start.trigger_id]
        if isinstance(outcome, Run):
            trigger.last_run_id = outcome.pk
        elif isinstance(outcome, Skip):
            if outcome._state.adding:
                work.records.append(outcome)
        else:
            logger.error("trigger %s did not start: %s", trigger.pk, outcome.code)
            found = Span(1, start.scheduled_for, start.scheduled_for)
            work.records.append(skips.of(trigger, Parked.BROKEN, found, work.now))


def _store(moved: Sequence[tuple[Trigger, datetime]]) -> None:
    """Only where each is as it was read; under the lock of its task nothing else can be."""
    rows = [
        (trigger.pk, trigger.version, read, *(getattr(trigger, name) for name in _COLUMNS))
        for trigger, read in moved
    ]
    if len(bulk.update_rows(Trigger, ["id", "version", "due_at"], _COLUMNS, rows)) != len(rows):
        raise VersionConflict


def _due(trigger: Trigger) -> datetime:
    assert trigger.due_at is not None
    return trigger.due_at
