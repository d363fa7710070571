"""Places of a task change hands without the ends of its runs waiting for each other (architecture.md §9)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection

from apps.dispatch.services import passes
from apps.runs.models import Run
from apps.runs.services import places, start
from apps.tasks.models import Task
from tests.runs import kit

pytestmark = pytest.mark.django_db(transaction=True)


def begun(task: Task) -> tuple[Any, Any]:
    """A running run of the task, as its session knows it."""
    fence = kit.worker()
    run = kit.run_of(task)
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    return fence, lease


def idle_places(task: Task) -> bool:
    waiting = Run.objects.filter(task=task, status="queued", holds_place=False).exists()
    return waiting and kit.holders(task) < places.capacity(task)


def test_an_end_hands_its_place_on(seeded: None) -> None:
    task = kit.task(concurrency="queue")
    fence, lease = begun(task)
    second, third = kit.run_of(task), kit.run_of(task, priority=5)
    kit.finish(fence, lease)
    assert kit.fresh(third).holds_place and not kit.fresh(second).holds_place
    assert kit.candidate_runs() == [third.pk]


def test_starts_and_ends_at_once_leave_no_place_idle(seeded: None) -> None:
    """Neither waits for the other's lock; whoever commits last sees what the other left."""
    task = kit.task(concurrency="queue")
    for _ in range(15):
        fence, lease = begun(task)
        found = kit.race([lambda f=fence, e=lease: kit.finish(f, e), *[lambda: kit.start(task)] * 2])
        assert not [result for result in found if isinstance(result, BaseException)]
        assert not idle_places(task) and kit.holders(task) == 1
        Run.objects.filter(task=task, status="queued").update(status="cancelled", holds_place=False)


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="on SQLite a start and an end exclude each other"
)
def test_an_end_in_the_middle_of_a_start(seeded: None) -> None:
    """The end finds nobody waiting yet, the start no place free any more: the one that commits last looks again."""
    task = kit.task(concurrency="queue")
    fence, lease = begun(task)
    insert = start._insert

    def end_first(*args: Any, **kwargs: Any) -> Run:
        assert not kwargs["has_place"]
        (found,) = kit.race([lambda: kit.finish(fence, lease)])
        assert found.settled
        return insert(*args, **kwargs)

    with patch.object(start, "_insert", end_first):
        run = kit.run_of(task)
    assert kit.fresh(run).holds_place


def test_what_a_process_left_that_died_in_between_is_swept(seeded: None) -> None:
    task = kit.task(concurrency="parallel", max_parallel=2)
    fence, lease = begun(task)
    for _ in range(4):
        kit.run_of(task)
    with patch.object(passes.places, "hand_on", return_value=False):
        kit.finish(fence, lease)
    assert idle_places(task)
    assert places.sweep() == 1 and not idle_places(task)
    assert places.sweep() == 0


def test_an_end_costs_one_read_where_nobody_waits(seeded: None, django_assert_num_queries: Any) -> None:
    task = kit.task(concurrency="queue")
    with django_assert_num_queries(1):
        assert places.hand_on([task.pk]) is False
    with django_assert_num_queries(0):
        assert places.hand_on([]) is False
