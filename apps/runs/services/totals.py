"""Folds ends into totals, so that no page ever counts runs; a control job calls it (architecture.md §4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Model
from django.utils import timezone

from apps.core import bulk, db, ids, participants
from apps.core.db import write_transaction
from apps.runs.models import (
    LastEnd,
    ProjectHourTotal,
    RunHourTotal,
    TaskDayTotal,
    UncountedRun,
    UsualDuration,
)

BATCH = 500
# Noted with the id of each run whose end was counted.
COUNTED = "run.counted"

_NEWER = (
    'ON CONFLICT ("task_id") DO UPDATE SET "run_id" = excluded."run_id", "status" = excluded."status", '
    '"finished_at" = excluded."finished_at" WHERE "run_last_ends"."finished_at" <= excluded."finished_at"'
)
# A mean that forgets: the old one weighs as its runs do, and never more than RUNS of them.
_BLEND = (
    'ON CONFLICT ("task_id") DO UPDATE SET '
    '"mean_ms" = ("t"."mean_ms" * "t"."runs" + excluded."mean_ms" * excluded."runs") / ("t"."runs" + excluded."runs"), '
    f'"runs" = CASE WHEN "t"."runs" + excluded."runs" > {UsualDuration.RUNS} THEN {UsualDuration.RUNS} '
    'ELSE "t"."runs" + excluded."runs" END'
).replace('"t"', '"run_usual_durations"')


@write_transaction
def fold_totals(limit: int = BATCH) -> int:
    """Counts up to `limit` ends into the totals of hours and days and returns how many; each is counted once.

    The newest of them become the last ends of their tasks, successes move the usual durations.
    """
    rows = list(db.skip_locked(UncountedRun.objects.order_by("run_id"))[:limit])
    if not rows:
        return 0
    zone = timezone.get_default_timezone()
    _add(
        RunHourTotal,
        ("project_id", "task_id", "hour", "status"),
        ((row.project_id, row.task_id, _hour(row), row.status) for row in rows),
        rows,
        unique=("task_id", "hour", "status"),
    )
    _add(
        ProjectHourTotal,
        ("project_id", "hour", "status"),
        ((row.project_id, _hour(row), row.status) for row in rows),
        rows,
        unique=("project_id", "hour", "status"),
    )
    _add(
        TaskDayTotal,
        ("project_id", "task_id", "day"),
        ((row.project_id, row.task_id, row.finished_at.astimezone(zone).date()) for row in rows),
        rows,
        unique=("task_id", "day"),
        longest=True,
    )
    _blend(row for row in rows if row.status == "succeeded")
    _remember(rows)
    UncountedRun.objects.filter(pk__in=[row.pk for row in rows]).delete()
    for row in rows:
        participants.note(COUNTED, row.pk)
    return len(rows)


def _hour(row: UncountedRun) -> datetime:
    return row.finished_at.replace(minute=0, second=0, microsecond=0)


def _add(
    model: type[Model],
    columns: tuple[str, ...],
    keys: Iterable[tuple[Any, ...]],
    rows: Sequence[UncountedRun],
    *,
    unique: tuple[str, ...],
    longest: bool = False,
) -> None:
    """Adds runs and their time to the rows with these keys; in the order of the keys, so that folders do not cross."""
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for key, row in zip(keys, rows, strict=True):
        entry = sums[key]
        entry[0] += 1
        entry[1] += row.duration_ms
        entry[2] = max(entry[2], row.duration_ms)
    counted = ("runs", "duration_ms", "longest_ms")[: 3 if longest else 2]
    table = model._meta.db_table
    changes = [f'"{name}" = "{table}"."{name}" + excluded."{name}"' for name in counted[:2]]
    if longest:
        larger = f'"{table}"."longest_ms" > excluded."longest_ms"'
        changes.append(
            f'"longest_ms" = CASE WHEN {larger} THEN "{table}"."longest_ms" ELSE excluded."longest_ms" END'
        )
    conflict = f"ON CONFLICT ({', '.join(unique)}) DO UPDATE SET {', '.join(changes)}"
    values = [(ids.uuid7(), *key, *sums[key][: len(counted)]) for key in sorted(sums)]
    bulk.insert_or_update(model, ("id", *columns, *counted), values, conflict)


def _blend(rows: Iterable[UncountedRun]) -> None:
    sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row.task_id][0] += 1
        sums[row.task_id][1] += row.duration_ms
    values = [(task_id, runs, spent // runs) for task_id, (runs, spent) in sorted(sums.items())]
    bulk.insert_or_update(UsualDuration, ("task_id", "runs", "mean_ms"), values, _BLEND)


def _remember(rows: Sequence[UncountedRun]) -> None:
    newest = {row.task_id: row for row in sorted(rows, key=lambda row: (row.finished_at, row.run_id))}
    columns = ("task_id", "project_id", "run_id", "status", "finished_at")
    values = [[getattr(newest[task_id], name) for name in columns] for task_id in sorted(newest)]
    bulk.insert_or_update(LastEnd, columns, values, _NEWER)
