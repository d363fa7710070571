"""Ended runs with logs of any age on the list, for tests of retention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.artifacts.models import StoredLog, UnlistedRun
from apps.artifacts.retention import listing
from apps.artifacts.retention.sweep import Options
from apps.core import clock
from apps.runs.models import RunAttempt
from apps.tasks.models import Task
from tests.artifacts.kit import attempt, run, write
from tests.tasks.kit import make

DAY = timedelta(days=1)
OPTIONS = Options(16, 8, 0)


def keep(fixture: Any, **changes: Any) -> None:
    """The instance's rule, for the length of a test."""
    fixture.RETENTION = replace(settings.RETENTION, **changes)


def ended(
    at: datetime,
    *,
    task: Task | None = None,
    status: str = "succeeded",
    content: bytes | None = b"x",
    **values: Any,
) -> RunAttempt:
    """An attempt that ended then, with its run; its log is written but not listed."""
    task = task or make()
    attempt_status = values.pop("attempt_status", status)
    of = run(
        status, task=task, project_id=task.project_id, finished_at=at if status in ENDS else None,
        created_at=at, **values,
    )  # fmt: skip
    made = attempt(of, status=attempt_status, finished_at=None if attempt_status == "running" else at)
    if content is not None:
        write(made, content)
    return made


ENDS = ("succeeded", "failed", "cancelled", "timed_out")


def listed(*attempts: RunAttempt) -> None:
    """Puts their runs on the list of what lies on the disk."""
    UnlistedRun.objects.bulk_create([UnlistedRun(pk) for pk in {one.run_id for one in attempts}])
    while listing.list_ended():
        pass


def many(
    count: int, newest: datetime, *, task: Task | None = None, status: str = "failed", **values: Any
) -> list[RunAttempt]:
    """That many ended attempts, oldest first, a minute apart, the newest at `newest`; listed."""
    task = task or make()
    made = [
        ended(newest - timedelta(minutes=count - 1 - n), task=task, status=status, **values)
        for n in range(count)
    ]
    listed(*made)
    return made


def log(of: RunAttempt) -> Path:
    from tests.artifacts.kit import log_path

    return log_path(of)


def on_disk(attempts: Sequence[RunAttempt]) -> list[RunAttempt]:
    return [one for one in attempts if log(one).exists()]


def stored() -> int:
    return StoredLog.objects.count()


def now() -> datetime:
    return clock.now()
