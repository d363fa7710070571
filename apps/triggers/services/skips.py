"""Records of due times that started nothing, folded: many due times with one reason are one row (lessons D5)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from apps.core import bulk, ids
from apps.runs.models import Skip
from apps.triggers import planning
from apps.triggers.models import Trigger
from apps.triggers.planning import Span

_COLUMNS = (
    "id", "project_id", "task_id", "reason", "cause", "trigger_type", "trigger_id", "triggered_by_type",
    "triggered_by_id", "scheduled_for", "last_scheduled_for", "count", "open", "blocking_run_id", "created_at",
)  # fmt: skip


def of(
    trigger: Trigger,
    reason: str,
    found: Span,
    now: datetime,
    *,
    cause: str | None = None,
    is_open: bool = False,
    actor_id: str = "scheduler",
) -> Skip:
    """A record that is not stored yet."""
    return Skip(
        id=ids.uuid7(),
        project_id=trigger.project_id,
        task_id=trigger.task_id,
        reason=reason,
        cause=cause,
        trigger_type=trigger.kind,
        trigger_id=trigger.pk,
        triggered_by_type="system",
        triggered_by_id=actor_id,
        scheduled_for=found.first,
        last_scheduled_for=found.last if found.count > 1 else None,
        count=found.count,
        open=is_open,
        created_at=now,
    )


def insert(records: Sequence[Skip]) -> None:
    """Stores records in one statement."""
    bulk.insert_rows(Skip, _COLUMNS, [[getattr(record, name) for name in _COLUMNS] for record in records])


def close(trigger: Trigger, now: datetime) -> None:
    """Completes the record that a pause left open, with what was due until now. The task must be locked."""
    found = Skip.objects.filter(trigger_id=trigger.pk, open=True).first()
    if found is not None:
        values = planning.completed(found.scheduled_for, trigger, now)
        Skip.objects.filter(pk=found.pk).update(open=False, **values)
