"""Triggers and schedulers, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from apps.core import clock
from apps.projects.policy import Grant
from apps.runs.models import Run, Skip
from apps.tasks.models import Task
from apps.triggers import services
from apps.triggers.drafts import TriggerDraft
from apps.triggers.models import Trigger

ANN = "0190a000-0000-7000-8000-0000000000aa"


def grants(project_id: str = "default", actor: str = "tests") -> tuple[Grant, Grant]:
    return Grant.system(project_id, "task.update", actor), Grant.system(project_id, "run.start", actor)


def made(task: Task, kind: str = "cron", **values: Any) -> services.Made:
    return services.create_trigger(*grants(task.project_id), task.pk, TriggerDraft(kind=kind, **values))


def cron(task: Task, schedule: str = "* * * * *", timezone: str = "UTC", **values: Any) -> Trigger:
    return made(task, "cron", schedule=schedule, timezone=timezone, **values).trigger


def interval(task: Task, every_ms: int = 60_000, **values: Any) -> Trigger:
    return made(task, "interval", every_ms=every_ms, **values).trigger


def change(trigger: Trigger, *, at: int | None = None, **changes: Any) -> Trigger:
    found = fresh(trigger)
    return services.change_trigger(
        *grants(trigger.project_id), trigger.task_id, trigger.pk, at or found.version, changes
    )


def fresh(trigger: Trigger) -> Trigger:
    return Trigger.objects.get(pk=trigger.pk)


def task_switch(task: Task, enabled: bool) -> Task:
    grant = Grant.system(task.project_id, "task.update", "tests")
    version = Task.objects.values_list("version", flat=True).get(pk=task.pk)
    return services.set_task_enabled(grant, task.pk, version, enabled)


def fire(cause: str = "late", **options: Any) -> int:
    return services.fire_due(lambda _due: cause, **options)


def due_times(trigger: Trigger) -> list[datetime]:
    rows = Run.objects.filter(trigger_id=trigger.pk).order_by("scheduled_for")
    return [at for at in rows.values_list("scheduled_for", flat=True) if at is not None]


def records(trigger: Trigger) -> list[tuple[str, int]]:
    rows = Skip.objects.filter(trigger_id=trigger.pk).order_by("created_at", "pk")
    return list(rows.values_list("reason", "count"))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def clock_at(time: Any, text: str) -> datetime:
    """Sets the fixture's clock."""
    time.ms = clock.to_ms(utc(text))
    return utc(text)


def body(**values: Any) -> Mapping[str, Any]:
    return values
