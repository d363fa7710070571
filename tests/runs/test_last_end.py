"""The newest end of each task follows the fold, whatever the order in which ends are folded."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.core import clock, ids
from apps.runs.models import LastEnd, UncountedRun
from apps.runs.services import fold_totals
from apps.tasks.models import Task
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db


def end(task: Task, minutes_ago: int, status: str) -> UncountedRun:
    at = clock.now() - timedelta(minutes=minutes_ago)
    return UncountedRun.objects.create(
        run_id=ids.uuid7(),
        project_id="default",
        task_id=task.pk,
        status=status,
        finished_at=at,
        duration_ms=1,
    )


def test_the_newest_end_stays_whatever_is_folded_later() -> None:
    task, other = make(), make(name="Other")
    end(task, 9, "failed")
    newest = end(task, 5, "succeeded")
    end(other, 7, "cancelled")
    fold_totals()
    assert LastEnd.objects.get(task=task).run_id == newest.run_id
    end(task, 8, "timed_out")
    fold_totals()
    assert LastEnd.objects.get(task=task).status == "succeeded"
    latest = end(task, 1, "failed")
    fold_totals()
    kept = LastEnd.objects.get(task=task)
    assert (kept.run_id, kept.status, kept.finished_at) == (latest.run_id, "failed", latest.finished_at)
    assert LastEnd.objects.get(task=other).status == "cancelled"
