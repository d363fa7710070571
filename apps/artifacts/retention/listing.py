"""The list of the logs that lie on the disk: rows come with the ends of runs, and go with their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Sum

from apps.artifacts.facts import UnsafeTarget
from apps.artifacts.models import StoredLog, StoredTotal, UnlistedRun
from apps.artifacts.retention import files
from apps.core import bulk, db
from apps.core.db import write_transaction
from apps.core.pace import Pace
from apps.runs.models import RunAttempt

BATCH = 250

_COLUMNS = (
    "attempt_id", "run_id", "project_id", "task_id", "log_artifact_id", "finished_at", "succeeded", "bytes", "files",
)  # fmt: skip
_ADD = (
    'ON CONFLICT ("task_id") DO UPDATE SET "logs" = "t"."logs" + excluded."logs", '
    '"bytes" = "t"."bytes" + excluded."bytes"'
).replace('"t"', f'"{StoredTotal._meta.db_table}"')


def note(run_ids: Sequence[UUID]) -> None:
    """Remembers runs whose end was counted; called as the last thing in that transaction."""
    bulk.insert_or_update(UnlistedRun, ["run_id"], [[pk] for pk in run_ids], "ON CONFLICT DO NOTHING")


def list_some(pace: Pace) -> bool:
    """Lists as many as one transaction should hold; whether there may be more."""
    size = pace.size("list", BATCH)
    done = list_ended(size)
    pace.after("list", done)
    return done == size


def list_ended(limit: int = BATCH) -> int:
    """Lists the logs of up to `limit` ended runs and returns how many runs that were.

    The disk is looked at before the transaction; a file that appears later belongs to nobody's end.
    """
    waiting = list(UnlistedRun.objects.order_by("run_id").values_list("run_id", flat=True)[:limit])
    if waiting:
        _store(waiting, [_row(attempt) for attempt in _attempts(waiting)])
    return len(waiting)


def _attempts(run_ids: Sequence[UUID]) -> list[RunAttempt]:
    rows = RunAttempt.objects.filter(
        run_id__in=run_ids,
        run__execution_owner="runtime",
        run__finished_at__isnull=False,
        executor_type="local_process",
        log_artifact_id__startswith="local-",
    )
    return list(rows.select_related("run").order_by("id"))


def _row(attempt: RunAttempt) -> list[Any]:
    run = attempt.run
    assert attempt.log_artifact_id is not None
    try:
        found = files.look(attempt.log_artifact_id)
    except (OSError, UnsafeTarget):
        found = None  # whoever removes it says what is wrong
    return [
        attempt.pk,
        run.pk,
        run.project_id,
        run.task_id,
        attempt.log_artifact_id,
        attempt.finished_at or run.finished_at,
        run.status == "succeeded" and attempt.status == "succeeded",
        found.bytes if found else 0,
        found.files if found else 0,
    ]


@write_transaction
def _store(run_ids: Sequence[UUID], rows: Sequence[Sequence[Any]]) -> None:
    """Stores the rows of those runs that nobody else listed meanwhile."""
    mine = set(
        db.skip_locked(UnlistedRun.objects.filter(pk__in=run_ids).order_by("run_id")).values_list(
            "run_id", flat=True
        )
    )
    chosen = [row for row in rows if row[1] in mine]
    added = bulk.insert_or_update(StoredLog, _COLUMNS, chosen, "ON CONFLICT DO NOTHING")
    _count([row for row in chosen if row[0] in added], 1)
    UnlistedRun.objects.filter(pk__in=mine).delete()


def strike(attempt_ids: Iterable[UUID]) -> None:
    """Takes logs off the list, inside the transaction that records their removal; once each."""
    rows = list(db.lock(StoredLog.objects.filter(pk__in=list(attempt_ids)).order_by("attempt_id")))
    if not rows:
        return
    bulk.delete_rows(StoredLog, "attempt_id", [row.pk for row in rows])
    _count([[getattr(row, name) for name in _COLUMNS] for row in rows], -1)


def _count(rows: Sequence[Sequence[Any]], sign: int) -> None:
    sums: dict[tuple[UUID, str], list[int]] = {}
    for _attempt, _run, project_id, task_id, _artifact, _at, _good, size, _files in rows:
        entry = sums.setdefault((task_id, project_id), [0, 0])
        entry[0] += sign
        entry[1] += sign * size
    if sign > 0:
        values = [(task, project, logs, size) for (task, project), (logs, size) in sorted(sums.items())]
        bulk.insert_or_update(StoredTotal, ["task_id", "project_id", "logs", "bytes"], values, _ADD)
        return
    # An insert would be checked before it becomes an update, and there is no total below nothing.
    tasks = [task for task, _project in sums]
    rest = {row.pk: row for row in db.lock(StoredTotal.objects.filter(pk__in=tasks).order_by("task_id"))}
    left = [
        (task, rest[task].logs + logs, rest[task].bytes + size)
        for (task, _project), (logs, size) in sums.items()
    ]
    bulk.update_rows(StoredTotal, ["task_id"], ["logs", "bytes"], left)


@dataclass(frozen=True)
class Usage:
    """Logs on the disk and their bytes."""

    logs: int = 0
    bytes: int = 0


def usage(project_id: str, task_id: UUID | None = None) -> Usage:
    """What a project or a task has on the disk, at most one listing old; one query."""
    rows = StoredTotal.objects.filter(project_id=project_id)
    if task_id is not None:
        rows = rows.filter(pk=task_id)
    found = rows.aggregate(logs=Sum("logs"), bytes=Sum("bytes"))
    return Usage(int(found["logs"] or 0), int(found["bytes"] or 0))
