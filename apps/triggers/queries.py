"""Reading triggers: of a task, of a project, what is due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, Min, OuterRef, QuerySet

from apps.core import clock, ids, pages
from apps.identity.models import IdentitySubject
from apps.projects.models import Project
from apps.projects.queries import attach
from apps.runs.models import Skip
from apps.tasks.models import Task
from apps.triggers import planning
from apps.triggers.errors import TriggerNotFound
from apps.triggers.models import Trigger
from apps.triggers.schedules import words as wording

OLDEST_FIRST = (pages.moment("created_at"), pages.identifier())


@dataclass(frozen=True)
class DueTrigger:
    """A trigger whose time has come, as it was seen without a lock."""

    trigger_id: UUID
    task_id: UUID
    project_id: str
    fire_at: datetime


def due(now: datetime, limit: int) -> list[DueTrigger]:
    """The triggers that are due, longest first; reads no others, however many there are."""
    rows = Trigger.objects.filter(fire_at__lte=now).order_by("fire_at")
    found = rows.values_list("pk", "task_id", "project_id", "fire_at")[:limit]
    return [
        DueTrigger(pk, task_id, project_id, at) for pk, task_id, project_id, at in found if at is not None
    ]


def next_fire() -> datetime | None:
    """When the next trigger is due."""
    rows = Trigger.objects.filter(fire_at__isnull=False)
    found: datetime | None = rows.aggregate(next=Min("fire_at"))["next"]
    return found


def find(task: Task, trigger_id: str) -> Trigger:
    """A trigger of the task; raises TriggerNotFound."""
    parsed = ids.parse_uuid(trigger_id)
    found = Trigger.objects.filter(pk=parsed, task=task).first() if parsed is not None else None
    if found is None:
        raise TriggerNotFound
    found.task = task
    return found


def page(task: Task, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None) -> pages.Page[Trigger]:
    """The triggers of a task, oldest first."""
    scope = {"project": task.project_id, "task": str(task.pk)}
    found = pages.paginate(
        Trigger.objects.filter(task=task),
        OLDEST_FIRST,
        kind="triggers",
        scope=scope,
        limit=limit,
        cursor=cursor,
    )
    for trigger in found.items:
        trigger.task = task
    return found


def of_tasks(task_ids: Iterable[UUID]) -> dict[UUID, list[Trigger]]:
    """The triggers of many tasks, oldest first, in one query; a task has at most 50."""
    found: dict[UUID, list[Trigger]] = {task_id: [] for task_id in task_ids}
    for trigger in Trigger.objects.filter(task_id__in=list(found)).order_by("pk"):
        found[trigger.task_id].append(trigger)
    return found


def upcoming(project_id: str, limit: int = 5) -> list[Trigger]:
    """What a project starts next, soonest first; each with its task."""
    rows = Trigger.objects.filter(
        project_id=project_id, fire_at__isnull=False, parked=None, task__enabled=True, task__archived_at=None
    )
    return list(rows.select_related("task").order_by("fire_at")[:limit])


def left_behind(author_id: str | None = None) -> QuerySet[Trigger]:
    """Enabled triggers of all active projects whose author is disabled: they fire all the same, and somebody should
    look at them. With `author_id` those of one author, disabled or not.
    """
    rows = Trigger.objects.filter(enabled=True, task__archived_at=None, project__status=Project.Status.ACTIVE)
    if author_id is not None:
        return rows.filter(author_id=author_id)
    gone = IdentitySubject.objects.filter(
        pk=OuterRef("author_id"), type=OuterRef("author_type"), status=IdentitySubject.Status.DISABLED
    )
    return rows.filter(Exists(gone))


def stranded(
    project_id: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[Trigger]:
    """What is left behind in one project, oldest first; each trigger with its task."""
    rows = left_behind().filter(project_id=project_id)
    found = pages.paginate(
        rows.select_related("task"),
        OLDEST_FIRST,
        kind="stranded_triggers",
        scope={"project": project_id},
        limit=limit,
        cursor=cursor,
    )
    attach(project_id, [trigger.task for trigger in found.items])
    return found


def complete_open(records: list[Skip]) -> None:
    """Fills in what open records have come to by now, in memory; one query where there are any."""
    open_records = {record.trigger_id: record for record in records if record.open}
    if not open_records:
        return
    now = clock.now()
    for trigger in Trigger.objects.filter(pk__in=list(open_records)):
        record = open_records[trigger.pk]
        for name, value in planning.completed(record.scheduled_for, trigger, now).items():
            setattr(record, name, value)


def next_start(trigger: Trigger, task: Task) -> datetime | None:
    """When the trigger starts the task next, as things are; None while something stands in the way."""
    standing = trigger.parked is not None or not task.enabled or task.archived_at is not None
    return None if standing else trigger.fire_at


def words(trigger: Trigger) -> str:
    """The rule as a sentence, in the language in use."""
    return wording.of(trigger)


def document(trigger: Trigger, task: Task) -> dict[str, Any]:
    """The API's form of a trigger (api.md, "Trigger")."""
    return {
        "id": str(trigger.pk),
        "project": {"id": task.project_id, "slug": task.project.slug},
        "task": {"id": str(task.pk), "slug": task.slug},
        "kind": trigger.kind,
        "schedule": trigger.schedule,
        "timezone": trigger.timezone,
        "every_ms": trigger.every_ms,
        "anchor_at": _moment(trigger.anchor_at),
        "at": _moment(trigger.at),
        "enabled": trigger.enabled,
        "misfire": trigger.misfire,
        "catch_up_max": trigger.catch_up_max,
        "misfire_grace_ms": trigger.misfire_grace_ms,
        "jitter_ms": trigger.jitter_ms,
        "input": trigger.input,
        "signed": trigger.signing_key_ref is not None,
        "words": words(trigger),
        "parked": trigger.parked,
        "next_fire_at": _moment(next_start(trigger, task)),
        "last_fire_at": _moment(trigger.last_fire_at),
        "last_run": None if trigger.last_run_id is None else str(trigger.last_run_id),
        "author": {"type": trigger.author_type, "id": trigger.author_id},
        "version": trigger.version,
        "created_at": clock.rfc3339(trigger.created_at),
        "updated_at": clock.rfc3339(trigger.updated_at),
    }


def _moment(at: datetime | None) -> str | None:
    return None if at is None else clock.rfc3339(at)
