"""Records of due times that started nothing, folded: many due times with one reason are one row (lessons D5)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from apps.core import bulk, ids
from apps.runs.models import Skip
from apps.triggers import planning
from apps.triggers.models import Trigger
from apps.triggers.planning import Span

_COLUMNS = (
    "id", "project_id", "task_id", "reason", "cause", "trigger_type", "trigger_id", "triggered_by_type",
    "triggered_by_id", "scheduled_for", "last_scheduled_for", "count", "open", "blocking_run_id", "approval_id",
    "filing", "created_at",
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
    close_many([(trigger, now)])


def close_many(pauses: Sequence[tuple[Trigger, datetime]]) -> set[UUID]:
    """The same for many triggers, each with the end of its pause; the ids of those that had an open record."""
    found = Skip.objects.filter(trigger_id__in=[trigger.pk for trigger, _until in pauses], open=True)
    records = {record.trigger_id: record for record in found if record.trigger_id is not None}
    rows = []
    for trigger, until in pauses:
        if (record := records.get(trigger.pk)) is not None:
            values = {"count": record.count, "last_scheduled_for": record.last_scheduled_for}
            values |= planning.completed(record.scheduled_for, trigger, until)
            rows.append((record.pk, False, values["count"], values["last_scheduled_for"]))
    bulk.update_rows(Skip, ["id"], ["open", "count", "last_scheduled_for"], rows)
    return set(records)
