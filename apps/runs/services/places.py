"""Who may run beside whom: places of a task, decided from rows under the task's lock (architecture.md §9, api.md).

A run that has a place is a candidate for dispatch and keeps the place until it ends; the others wait, visibly.
Places are given under the task's lock only. They are left without it, so that the ends of one task's runs never
wait for each other; whoever left some hands them on after its commit, as does whoever came to wait: one of the two
sees the other. `sweep` finds what a process left that died in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q

from apps.core import bulk, wakeups
from apps.core.db import write_transaction
from apps.runs.models import Run
from apps.tasks.models import Task

CLUSTER = "runs"
SWEPT = 100
HOLDS = Q(holds_place=True)
WAITS = Q(status="queued", holds_place=False)


def lock_tasks(task_ids: Iterable[UUID]) -> dict[UUID, Task]:
    """The tasks, locked in the order of their ids; taken before any row of their runs."""
    wanted = set(task_ids)
    if not wanted:
        return {}
    where, params = bulk.among(Task, "id", wanted)
    return {task.pk: task for task in bulk.select_rows(Task, where, params, order="id", lock=True)}


def capacity(task: Task) -> int:
    """How many runs of the task may have a place at once."""
    return task.max_parallel if task.concurrency == Task.Concurrency.PARALLEL else 1


def free(task: Task) -> int:
    """How many more runs may have one; negative where the task was given fewer. The task must be locked."""
    return capacity(task) - Run.objects.filter(HOLDS, task_id=task.pk).count()


def oldest_holder(task: Task) -> Run | None:
    """The run that has held its place longest. The task must be locked."""
    return Run.objects.filter(HOLDS, task_id=task.pk).order_by("pk").first()


def refill(tasks: Iterable[Task]) -> int:
    """Gives freed places to the runs that wait longest, by priority; returns how many. The tasks must be locked."""
    known = {task.pk: task for task in tasks}
    return sum(_fill(known[task_id]) for task_id in _waiting(known))


def _fill(task: Task) -> int:
    # Conditions as the partial indexes have them; the outer status is for a run that was cancelled meanwhile.
    most = capacity(task)
    key = Task._meta.pk.get_db_prep_value(task.pk, connection)
    given = bulk.select_values_later(
        "UPDATE runs SET holds_place = %s WHERE status = 'queued' AND id IN ("
        " SELECT id FROM runs WHERE task_id = %s AND status = 'queued' AND NOT holds_place"
        " AND cancel_requested_at IS NULL ORDER BY priority DESC, queued_at, id LIMIT ("
        "  SELECT CASE WHEN count(*) < %s THEN %s - count(*) ELSE 0 END FROM runs"
        "  WHERE task_id = %s AND holds_place)) RETURNING id",
        [True, key, most, most, key],
    )
    return len(given())


def hand_on(task_ids: Iterable[UUID]) -> bool:
    """Gives places that ended runs have left to those that wait; called outside any transaction.

    One read where nobody waits. Tells whether a run got a place.
    """
    waiting = _waiting(task_ids)
    return bool(waiting) and _give(waiting) > 0


def hand_on_after_commit(task_ids: Iterable[UUID]) -> None:
    """For whoever came to wait in this transaction: the last place may have become free while it looked."""
    waiting = list(task_ids)
    if waiting:
        transaction.on_commit(lambda: hand_on(waiting), robust=True)


def sweep() -> int:
    """Hands on what a process that died left free; at most 100 tasks at once. Returns how many runs it concerned."""
    waiting = Run.objects.filter(WAITS).order_by("task_id")
    return _give(waiting.values_list("task_id", flat=True).distinct()[:SWEPT])


@write_transaction
def _give(task_ids: Iterable[UUID]) -> int:
    given = refill(lock_tasks(task_ids).values())
    if given:
        wakeups.ring(CLUSTER)
    return given


def _waiting(task_ids: Iterable[UUID]) -> list[UUID]:
    """Those of the tasks that have a waiting run. Literal conditions keep the partial index usable."""
    wanted = list(task_ids)
    if not wanted:
        return []
    where, params = bulk.among(Task, "id", wanted)
    found = bulk.select_values_later(
        f"SELECT id FROM tasks WHERE {where} AND EXISTS (SELECT 1 FROM runs"
        " WHERE runs.task_id = tasks.id AND runs.status = 'queued' AND NOT runs.holds_place) ORDER BY id",
        params,
    )
    return [Task._meta.pk.to_python(value) for value in found()]
