"""Totals that charts and lists read: per hour and project, per day and task, and how long a task usually takes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from apps.core import ids
from apps.runs import queries, services
from apps.runs.models import ProjectHourTotal, RunHourTotal, TaskDayTotal, UncountedRun, UsualDuration
from tests.runs import kit

AT = datetime(2026, 11, 29, 23, 30, tzinfo=UTC)


def ended(task_id: UUID, ms: int, status: str = "succeeded", at: datetime = AT) -> UncountedRun:
    return UncountedRun(
        run_id=ids.uuid7(),
        project_id="default",
        task_id=task_id,
        status=status,
        finished_at=at,
        duration_ms=ms,
    )


def fold(*rows: UncountedRun) -> None:
    UncountedRun.objects.bulk_create(rows)
    while services.fold_totals():
        pass


@pytest.mark.django_db
def test_a_project_has_one_row_per_hour_and_state() -> None:
    first, second = kit.task().pk, kit.task().pk
    fold(ended(first, 10), ended(second, 20), ended(second, 5, "failed"))
    fold(ended(first, 30), ended(first, 1, at=AT + timedelta(hours=1)))
    rows = ProjectHourTotal.objects.order_by("hour", "status").values_list(
        "hour__hour", "status", "runs", "duration_ms"
    )
    assert list(rows) == [(23, "failed", 1, 5), (23, "succeeded", 3, 60), (0, "succeeded", 1, 1)]
    assert RunHourTotal.objects.count() == 4


@pytest.mark.django_db
def test_a_day_is_the_installations_day_and_keeps_the_longest(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Shanghai"
    task = kit.task().pk
    fold(ended(task, 10), ended(task, 70, "failed"), ended(task, 20, at=AT - timedelta(hours=20)))
    fold(ended(task, 30))
    rows = TaskDayTotal.objects.order_by("day").values_list("day", "runs", "duration_ms", "longest_ms")
    assert list(rows) == [(date(2026, 11, 29), 1, 20, 20), (date(2026, 11, 30), 3, 110, 70)]


@pytest.mark.django_db
def test_the_usual_duration_is_of_successes_and_follows_the_newest() -> None:
    task = kit.task().pk
    fold(ended(task, 1000), ended(task, 9_999_999, "failed"))
    assert queries.usual_durations([task]) == {task: 1000}
    fold(ended(task, 3000))
    assert queries.usual_durations([task, ids.uuid7()]) == {task: 2000}
    for _ in range(60):
        fold(ended(task, 100))
    assert queries.usual_durations([task])[task] < 250
    assert UsualDuration.objects.get().runs == UsualDuration.RUNS


def test_concurrent_folders_lose_nothing(seeded: None) -> None:
    tasks = [kit.task().pk for _ in range(3)]
    UncountedRun.objects.bulk_create(ended(tasks[at % 3], 10) for at in range(90))
    calls: list[Callable[[], Any]] = [lambda: services.fold_totals(limit=7)] * 24
    results = kit.race(calls, threads=6)
    assert not [result for result in results if isinstance(result, Exception)], results
    while services.fold_totals():
        pass
    assert [row.runs for row in ProjectHourTotal.objects.all()] == [90]
    assert [(row.runs, row.duration_ms) for row in TaskDayTotal.objects.all()] == [(30, 300)] * 3
    assert set(queries.usual_durations(tasks).values()) == {10}


@pytest.mark.django_db
def test_several_states_are_one_list_in_both_directions() -> None:
    task = kit.task(concurrency="parallel", max_parallel=50)
    made = [kit.run_of(task) for _ in range(9)]
    for run in made[::2]:
        services.request_cancel(kit.grant("run.stop"), run.pk)
    chosen = queries.RunFilter(statuses=("queued", "cancelled"))
    newest = [run.pk for run in reversed(made)]
    first = queries.page("default", chosen, limit=4)
    second = queries.page("default", chosen, limit=4, cursor=first.next_cursor)
    last = queries.page("default", chosen, limit=4, backward=True)
    assert [run.pk for run in first.items + second.items] == newest[:8]
    assert first.previous_cursor is None and [run.pk for run in last.items] == newest[5:]
    assert last.next_cursor is None
    before = queries.page("default", chosen, limit=4, cursor=last.previous_cursor, backward=True)
    assert [run.pk for run in before.items] == newest[1:5]
    back = queries.page("default", chosen, limit=4, cursor=second.previous_cursor, backward=True)
    assert [run.pk for run in back.items] == newest[:4] and back.previous_cursor is None
    again = queries.page("default", chosen, limit=4, cursor=back.next_cursor)
    assert [run.pk for run in again.items] == newest[4:8]
