"""Enabling, disabling and archiving: whatever stops a task from starting also empties its queue (lessons D6).

Runs that are under way are left alone: whoever archives or disables is asked about them, and stops them by name.
Triggers are not touched when something is switched off: the scheduler parks each at its next due time, with a
record. Switched on again, they are handed back to it with the moment from which due times count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce

from apps.audit import services as audit
from apps.core import cas, clock, wakeups
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput, NotFound, VersionConflict
from apps.core.streams import Actor
from apps.projects import policy
from apps.projects import services as projects
from apps.projects.models import Project
from apps.projects.policy import Grant
from apps.runs.services import cancel_queued, places
from apps.tasks import services as tasks
from apps.tasks.errors import TaskArchived
from apps.tasks.models import Task
from apps.triggers import CHANNEL
from apps.triggers.models import Parked, Switch, Trigger


@write_transaction
def change_task(grant: Grant, task_id: UUID, version: int, changes: Mapping[str, Any]) -> Task:
    """Replaces the named fields whole, `enabled` included, and gives waiting runs the places a change opens.

    Needs `task.update`. Raises what `tasks.services.update_task` raises.
    """
    wanted = dict(changes)
    enabled = wanted.pop("enabled", ...)
    # The project before the task, as everywhere: archiving takes them in this order.
    policy.confirm(grant)
    locked = places.lock_tasks([task_id])
    before = locked.get(task_id)
    task = tasks.update_task(grant, task_id, version, wanted)
    if enabled is not ...:
        if not isinstance(enabled, bool | None):
            raise InvalidInput.field("enabled", "True or false.")
        task = set_task_enabled(
            grant,
            task_id,
            task.version,
            True if enabled is None else enabled,
            same_act=task.version != version,
        )
    if before is not None and places.capacity(task) > places.capacity(before):
        places.refill([task])
    return task


@write_transaction
def set_task_enabled(
    grant: Grant, task_id: UUID, version: int, enabled: bool, *, same_act: bool = False
) -> Task:
    """Enables or disables a task; disabling cancels its queued runs.

    One that already is so stays as it is. `same_act`: the version was raised by the same request before.
    Raises NotFound, VersionConflict and TaskArchived.
    """
    task = _locked(grant, task_id, version)
    if task.enabled == enabled:
        return task
    cas.update(
        Task.objects.filter(pk=task.pk),
        version=version,
        by=0 if same_act else 1,
        enabled=enabled,
        updated_at=clock.now(),
    )
    cancelled = 0 if enabled else _empty(grant, task, "task disabled")
    _switched(grant, "enabled" if enabled else "disabled", task.pk)
    if enabled:
        _resume(Trigger.objects.filter(task=task), Parked.TASK_DISABLED)
    _record(grant, "task.enabled" if enabled else "task.disabled", task, {"cancelled": cancelled})
    return _task(task.pk)


@write_transaction
def archive_task(grant: Grant, task_id: UUID, version: int) -> Task:
    """Archives a task: its queued runs are cancelled, its history stays, its short name is free again.

    One that names secrets needs `secret.use` too. Raises NotFound, VersionConflict, TaskArchived and Forbidden.
    """
    task = _locked(grant, task_id, version)
    if task.revision.uses_secrets:
        policy.confirm_secret_use(grant)
    now = clock.now()
    cas.update(Task.objects.filter(pk=task.pk), version=version, archived_at=now, updated_at=now)
    _switched(grant, "archived", task.pk)
    _record(grant, "task.archived", task, {"cancelled": _empty(grant, task, "task archived")})
    return _task(task.pk)


@write_transaction
def empty_queue(grant: Grant, task_id: UUID) -> int:
    """Cancels every run of the task that waits; returns how many. Needs `run.stop`."""
    policy.confirm(grant)
    task = Task.objects.filter(pk=task_id, project_id=grant.project_id).first()
    if task is None:
        raise NotFound
    cancelled = _empty(grant, task, "queue emptied")
    _record(grant, "task.queue_emptied", task, {"cancelled": cancelled})
    return cancelled


@write_transaction
def archive_project(grant: Grant, version: int) -> Project:
    """Archives a project: nothing in it can be started, its queued runs are cancelled. Raises VersionConflict."""
    project = projects.set_project_status(grant, version, Project.Status.ARCHIVED)
    _switched(grant, "archived", None)
    waiting = Task.objects.filter(
        project_id=project.pk, runs__status__in=["queued", "dispatching", "retry_wait"]
    ).distinct()
    actor = Actor(grant.actor.type, grant.actor.id)
    cancel_queued(waiting.values_list("pk", flat=True), actor, note="project archived")
    return project


@write_transaction
def restore_project(grant: Grant, version: int) -> Project:
    """Makes an archived project work again. Raises VersionConflict."""
    project = projects.set_project_status(grant, version, Project.Status.ACTIVE)
    _switched(grant, "restored", None)
    _resume(Trigger.objects.filter(project_id=project.pk), Parked.PROJECT_ARCHIVED)
    return project


def _locked(grant: Grant, task_id: UUID, version: int) -> Task:
    policy.confirm(grant)
    task = places.lock_tasks([task_id]).get(task_id)
    if task is None or task.project_id != grant.project_id:
        raise NotFound
    if task.version != version:
        raise VersionConflict(task.version)
    if task.archived_at is not None:
        raise TaskArchived
    return task


def _switched(grant: Grant, state: str, task_id: UUID | None) -> None:
    """Remembers who did it, for whoever asks why something did not run."""
    Switch.objects.create(
        project_id=grant.project_id,
        task_id=task_id,
        state=state,
        changed_by_type=grant.actor.type,
        changed_by_id=grant.actor.id,
        created_at=clock.now(),
    )


def _resume(triggers: QuerySet[Trigger], reason: Parked) -> None:
    """Has the scheduler take up the triggers from this moment on; one statement, however many there are.

    Those that are parked, and those whose due time passed before the scheduler came to park them.
    """
    now = clock.now()
    waiting = triggers.filter(
        Q(parked__isnull=False) | Q(fire_at__lte=now), enabled=True, due_at__isnull=False
    )
    waiting.update(fire_at=now, parked=Coalesce("parked", Value(str(reason))))
    wakeups.nudge(CHANNEL)


def _task(task_id: UUID) -> Task:
    return Task.objects.select_related("project", "revision").get(pk=task_id)


def _empty(grant: Grant, task: Task, note: str) -> int:
    return cancel_queued([task.pk], Actor(grant.actor.type, grant.actor.id), note=note)


def _record(grant: Grant, action: str, task: Task, metadata: Mapping[str, Any]) -> None:
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action=action,
        subject=("task", str(task.pk)),
        metadata=metadata,
        origin=grant.origin,
    )
