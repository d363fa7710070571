"""Folds ends into totals per hour; a control job calls it (architecture.md §4)."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from uuid import UUID

from django.db.models import F

from apps.core import bulk, db
from apps.core.db import write_transaction
from apps.runs.models import LastEnd, RunHourTotal, UncountedRun

BATCH = 500
_COLUMNS = ("task_id", "project_id", "run_id", "status", "finished_at")
_NEWER = (
    'ON CONFLICT ("task_id") DO UPDATE SET "run_id" = excluded."run_id", "status" = excluded."status", '
    '"finished_at" = excluded."finished_at" WHERE "run_last_ends"."finished_at" <= excluded."finished_at"'
)


@write_transaction
def fold_totals(limit: int = BATCH) -> int:
    """Adds up to `limit` uncounted ends to their hours and returns how many; each is counted once.

    The newest of them become the last ends of their tasks.
    """
    rows = list(db.skip_locked(UncountedRun.objects.order_by("run_id"))[:limit])
    sums: dict[tuple[str, UUID, datetime, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        hour = row.finished_at.replace(minute=0, second=0, microsecond=0)
        entry = sums[row.project_id, row.task_id, hour, row.status]
        entry[0] += 1
        entry[1] += row.duration_ms
    for (project_id, task_id, hour, status), (runs, duration_ms) in sorted(sums.items()):
        total, created = RunHourTotal.objects.get_or_create(
            task_id=task_id,
            hour=hour,
            status=status,
            defaults={"project_id": project_id, "runs": runs, "duration_ms": duration_ms},
        )
        if not created:
            RunHourTotal.objects.filter(pk=total.pk).update(
                runs=F("runs") + runs, duration_ms=F("duration_ms") + duration_ms
            )
    newest = {row.task_id: row for row in sorted(rows, key=lambda row: (row.finished_at, row.run_id))}
    ends = [[getattr(newest[task_id], name) for name in _COLUMNS] for task_id in sorted(newest)]
    bulk.insert_or_update(LastEnd, _COLUMNS, ends, _NEWER)
    UncountedRun.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)
