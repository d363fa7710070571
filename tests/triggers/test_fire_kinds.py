"""Starts of each kind of trigger – once, at boot, by interval –, and what a pass costs."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.runs.models import Run
from apps.triggers import services
from apps.triggers.models import Trigger
from tests.runs.kit import grant, task
from tests.triggers.kit import (
    clock_at,
    cron,
    due_times,
    fire,
    fresh,
    interval,
    made,
    records,
    task_switch,
    utc,
)
from tests.triggers.test_fire import PARALLEL, _while_archived

pytestmark = pytest.mark.django_db


def test_a_whole_project_is_taken_up_again_in_a_few_statements(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    triggers = [cron(task(f"t{number}")) for number in range(40)]
    project = services.archive_project(grant("project.manage"), 1)
    clock_at(time, "2026-11-30T00:01:30")
    fire()
    clock_at(time, "2026-11-30T00:05:30")
    with CaptureQueriesContext(connection) as restoring:
        services.restore_project(_while_archived(), project.version)
    assert len([query for query in restoring if 'UPDATE "triggers"' in query["sql"]]) == 1
    with CaptureQueriesContext(connection) as captured:
        assert fire() == 40
    assert len(captured) < 25
    assert all(records(trigger) == [("project_archived", 5)] for trigger in triggers)
    assert Trigger.objects.filter(parked=None, fire_at=utc("2026-11-30T00:06")).count() == 40


def test_once_fires_once(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:00")
    trigger = made(task(), "once", at=utc("2026-11-30T00:00:05")).trigger
    clock_at(time, "2026-11-30T00:00:05")
    assert [fire(), fire()] == [1, 0]
    assert (fresh(trigger).fire_at, len(due_times(trigger))) == (None, 1)
    assert Run.objects.get().trigger_type == "once"


def test_boot_fires_once_per_start_of_up(time: Any) -> None:
    from apps.core import ids

    first, second = ids.uuid7(), ids.uuid7()
    of = task(**PARALLEL)
    trigger = made(of, "boot").trigger
    off = made(of, "boot", enabled=False).trigger
    assert fire() == 0
    for boot in (first, first, second, first):
        services.arm_boot(boot)
        fire()
        time.ms += 1_000
    assert len(due_times(trigger)) == 2
    assert due_times(off) == []
    task_switch(of, False)
    services.arm_boot(ids.uuid7())
    fire()
    assert records(trigger) == [("task_disabled", 1)]
    task_switch(of, True)
    assert fire() == 0
    assert fresh(trigger).parked is None


def test_interval_keeps_to_its_anchor(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:03")
    trigger = interval(task(**PARALLEL), 10_000, anchor_at=utc("2026-11-30T00:00:00"))
    for _ in range(3):
        time.ms += 10_000
        fire()
    assert due_times(trigger) == [utc(f"2026-11-30T00:00:{second}") for second in (10, 20, 30)]


def test_a_pass_takes_the_same_number_of_queries_for_any_number(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    for number in range(3):
        cron(task(f"t{number}"))
    clock_at(time, "2026-11-30T00:01:00")
    with CaptureQueriesContext(connection) as few:
        fire()
    for number in range(30):
        cron(task(f"more{number}"))
    clock_at(time, "2026-11-30T00:02:00")
    with CaptureQueriesContext(connection) as many:
        assert fire() == 33
    assert len(many) <= len(few) + 2


def test_only_due_rows_are_read(time: Any) -> None:
    """The plan of the one query that every scheduler asks all the time."""
    clock_at(time, "2026-11-30T00:00:30")
    cron(task())
    sql = "SELECT id FROM triggers WHERE fire_at <= %s ORDER BY fire_at LIMIT 200"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
            cursor.execute(f"EXPLAIN {sql}", [utc("2026-11-30T00:00:30")])
        else:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", ["2026-11-30 00:00:30"])
        plan = " ".join(str(row) for row in cursor.fetchall())
        if connection.vendor == "postgresql":
            cursor.execute("RESET enable_seqscan; RESET enable_bitmapscan")
    assert "trigger_due" in plan
    assert "Sort" not in plan and "TEMP B-TREE" not in plan
