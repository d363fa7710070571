"""Who may run beside whom: places of a task, decided from rows under the task's lock (architecture.md §9, api.md).

A run that has a place is a candidate for dispatch and keeps the place until it ends; the others wait, visibly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from apps.core import bulk
from apps.runs.models import Run
from apps.tasks.models import Task


def lock_tasks(task_ids: Iterable[UUID]) -> dict[UUID, Task]:
    """The tasks, locked in the order of their ids; taken before any row of their runs."""
    wanted = set(task_ids)
    if not wanted:
        return {}
    where, params = bulk.among(Task, "id", wanted)
    return {task.pk: task for task in bulk.select_rows(Task, where, params, order="id", lock=True)}


def lock_tasks_of(run_ids: Iterable[UUID]) -> Callable[[], list[Task]]:
    """The tasks of the runs, locked likewise; the answer when it is called for."""
    wanted = set(run_ids)
    if not wanted:
        return list
    where, params = bulk.among(Run, "id", wanted)
    where = f"id IN (SELECT task_id FROM runs WHERE {where})"
    return bulk.select_rows_later(Task, where, params, order="id", lock=True)


def capacity(task: Task) -> int:
    """How many runs of the task may have a place at once."""
    return task.max_parallel if task.concurrency == Task.Concurrency.PARALLEL else 1


def holders(task_id: UUID) -> list[Run]:
    """The runs that have a place, oldest first. The task must be locked."""
    return list(Run.objects.filter(task_id=task_id, holds_place=True).order_by("pk"))


def refill(tasks: Iterable[Task]) -> int:
    """Gives freed places to the runs that wait longest, by priority; returns how many. The tasks must be locked."""
    known = list(tasks)
    return fill(known, waiting(known)())


def fill(tasks: Iterable[Task], waiting_ids: Iterable[UUID]) -> int:
    """The same, for those of the tasks of which it is known that a run waits."""
    known = {task.pk: task for task in tasks}
    given = 0
    for task_id in waiting_ids:
        task = known[task_id]
        free = capacity(task) - Run.objects.filter(task_id=task_id, holds_place=True).count()
        if free <= 0:
            continue
        next_ids = list(
            Run.objects.filter(task_id=task_id, status="queued", holds_place=False, cancel_requested_at=None)
            .order_by("-priority", "queued_at", "pk")
            .values_list("pk", flat=True)[:free]
        )
        given += Run.objects.filter(pk__in=next_ids, status="queued").update(holds_place=True)
    return given


def waiting(tasks: Iterable[Task]) -> Callable[[], list[UUID]]:
    """Those of the tasks that have a waiting run, when it is called for.

    Literal conditions keep the partial index usable.
    """
    task_ids = [task.pk for task in tasks]
    if not task_ids:
        return list
    where, params = bulk.among(Run, "task_id", task_ids)
    found = bulk.select_values_later(
        f"SELECT DISTINCT task_id FROM runs WHERE {where} AND status = 'queued' AND NOT holds_place", params
    )
    return lambda: [Run._meta.pk.to_python(value) for value in found()]
