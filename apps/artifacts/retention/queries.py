"""What pages and the API read of retention."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from apps.artifacts.models import RetentionReceipt, RetentionRule, StoredTotal
from apps.core import pages
from apps.core.pages import Page
from apps.tasks.models import Task


def _day(value: Any) -> date:
    return date.fromisoformat(value)


_NEWEST_FIRST = (pages.Key("day", descending=True, read=_day), pages.identifier(descending=True))


def receipts(
    project_id: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> Page[RetentionReceipt]:
    """The bills of a project (empty = of the instance), the newest day first."""
    return pages.paginate(
        RetentionReceipt.objects.filter(project_id=project_id),
        _NEWEST_FIRST,
        kind="retention-receipts",
        scope={"project": project_id},
        limit=limit,
        cursor=cursor,
    )


@dataclass(frozen=True)
class Share:
    """What a task has on the disk."""

    task: Task
    logs: int
    bytes: int


def largest(project_id: str, limit: int = 10) -> list[Share]:
    """The tasks of a project whose logs take most; two queries."""
    rows = list(
        StoredTotal.objects.filter(project_id=project_id, logs__gt=0).order_by("-bytes", "task_id")[:limit]
    )
    named = Task.objects.in_bulk([row.pk for row in rows])
    return [Share(named[row.pk], row.logs, row.bytes) for row in rows if row.pk in named]


def tasks_with_rules(project_id: str, limit: int = 100) -> list[RetentionRule]:
    """Rules of single tasks, by the name of the task."""
    rows = RetentionRule.objects.filter(project_id=project_id, task__isnull=False).exclude(
        keep_ms=None, keep_most=None, keep_bytes=None, keep_least=None
    )
    return list(rows.select_related("task").order_by("task__name", "id")[:limit])
