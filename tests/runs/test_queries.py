"""Lists of runs: constant cost, order, filters."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import InvalidInput
from apps.core.pages import CursorMismatch
from apps.runs import queries
from apps.runs.models import Run
from apps.runs.queries import RunFilter
from tests import people
from tests.runs import kit

pytestmark = pytest.mark.django_db


def cost(call: Any) -> int:
    with CaptureQueriesContext(connection) as seen:
        call()
    assert not [query for query in seen.captured_queries if "COUNT(" in query["sql"].upper()]
    return len(seen)


def test_a_page_costs_the_same_with_1_and_50_runs() -> None:
    ann = people.api(people.member("viewer"))
    paths = ("projects/default/runs", "projects/default/skips")
    tasks = [kit.task(f"t{number}") for number in range(5)]
    kit.run_of(tasks[0])
    ann("GET", paths[0])  # the first request of a token notes its use
    before = [cost(lambda p=path: ann("GET", p)) for path in paths]
    for number in range(49):
        kit.run_of(tasks[number % 5])
    assert [cost(lambda p=path: ann("GET", p)) for path in paths] == before
    assert len(ann("GET", paths[0]).json()["items"]) == 50


def test_pages_walk_newest_first(time: Any) -> None:
    tasks = [kit.task("a"), kit.task("b")]
    runs = []
    for number in range(9):
        time.advance(number % 2)
        runs.append(kit.run_of(tasks[number % 2]))
    expected = [run.pk for run in Run.objects.order_by("-created_at", "-pk")]
    found, cursor = [], None
    while True:
        page = queries.page("default", limit=2, cursor=cursor)
        found += [run.pk for run in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == expected
    first = queries.page("default", limit=2)
    with pytest.raises(CursorMismatch):
        queries.page("default", RunFilter(task_id=tasks[0].pk), limit=2, cursor=first.next_cursor)


def test_filters(time: Any) -> None:
    task = kit.task("a")
    first = kit.run_of(task)
    time.advance(1000)
    second = kit.run_of(task, trigger_type="cron")

    def ids_of(**options: Any) -> list[Any]:
        return [run.pk for run in queries.page("default", RunFilter(**options)).items]

    assert ids_of(trigger_type="cron") == [second.pk]
    assert ids_of(since=second.created_at) == [second.pk]
    assert ids_of(until=second.created_at) == [first.pk]
    assert ids_of(statuses=("queued",)) == [second.pk, first.pk]
    assert ids_of(statuses=("failed", "lost")) == []
    for wrong in ({"statuses": ("done",)}, {"trigger_type": "moon"}):
        with pytest.raises(InvalidInput):
            RunFilter(**wrong)


def test_events_have_bounds() -> None:
    run = kit.run_of(kit.task())
    assert [event.sequence for event in queries.events(run.pk, after=1)] == [2]
    for options in ({"after": -1}, {"limit": 0}, {"limit": 501}):
        with pytest.raises(InvalidInput):
            queries.events(run.pk, **options)
