"""What the scheduler does with due triggers: once each, in one transaction, by the rules of the task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.models import Wakeup
from apps.projects.policy import Grant
from apps.runs import payloads
from apps.runs.models import Run, Skip
from apps.triggers import services
from apps.triggers.models import Trigger
from apps.triggers.services import firing
from tests import people
from tests.runs.kit import check_history, events, grant, task
from tests.triggers.kit import (
    change,
    clock_at,
    cron,
    due_times,
    fire,
    fresh,
    interval,
    records,
    task_switch,
    utc,
)

pytestmark = pytest.mark.django_db
PG = connection.vendor == "postgresql"
PARALLEL = {"concurrency": "parallel", "max_parallel": 100}


def test_a_due_time_starts_one_run(time: Any) -> None:
    clock_at(time, "2026-11-30T10:00:30")
    trigger = cron(task(), input={"a": 1})
    assert (trigger.due_at, trigger.fire_at) == (utc("2026-11-30T10:01:00"),) * 2
    assert fire() == 0
    now = clock_at(time, "2026-11-30T10:01:00.020")
    assert fire() == 1
    run = Run.objects.get()
    assert (run.trigger_type, run.trigger_id, run.scheduled_for) == (
        "cron",
        trigger.pk,
        utc("2026-11-30T10:01:00"),
    )
    assert (run.triggered_by_type, run.triggered_by_id, run.status, run.holds_place) == (
        "system", "scheduler", "queued", True,
    )  # fmt: skip
    assert (run.created_at, run.queued_at) == (now, now)
    assert payloads.open_input(run).input == {"a": 1}
    assert events(run) == ["attempt.claimed", "run.queued"]
    check_history(run)
    assert Wakeup.objects.filter(cluster="runs", answered=False).exists()
    trigger = fresh(trigger)
    assert (trigger.fire_at, trigger.last_fire_at, trigger.last_run_id) == (
        utc("2026-11-30T10:02:00"),
        now,
        run.pk,
    )
    assert fire() == 0


def test_the_key_is_made_of_trigger_and_due_time(time: Any) -> None:
    clock_at(time, "2026-11-30T10:00:30")
    trigger = cron(task())
    clock_at(time, "2026-11-30T10:01:00")
    fire()
    # As after a restore of half a backup: the run is there, the trigger does not know.
    Trigger.objects.filter(pk=trigger.pk).update(
        due_at=trigger.due_at, fire_at=trigger.fire_at, last_run_id=None
    )
    assert fire() == 1
    assert Run.objects.count() == 1
    assert fresh(trigger).last_run_id == Run.objects.get().pk


def test_many_triggers_of_one_task_take_its_places_in_turn(time: Any) -> None:
    clock_at(time, "2026-11-30T10:00:30")
    of = task()
    for _ in range(3):
        cron(of)
    clock_at(time, "2026-11-30T10:01:00")
    assert fire() == 3
    assert sorted(Run.objects.values_list("holds_place", flat=True)) == [False, False, True]


def test_skip_leaves_a_record_for_every_start_without_a_place(time: Any) -> None:
    clock_at(time, "2026-11-30T10:00:30")
    of = task(concurrency="skip")
    triggers = [cron(of), cron(of)]
    clock_at(time, "2026-11-30T10:01:00")
    fire()
    run, skip = Run.objects.get(), Skip.objects.get()
    assert (skip.reason, skip.blocking_run_id, skip.count) == ("concurrency_skipped", run.pk, 1)
    assert {run.trigger_id, skip.trigger_id} == {trigger.pk for trigger in triggers}
    assert skip.scheduled_for == utc("2026-11-30T10:01:00")


@pytest.mark.parametrize("capacity", ["one", "many"])
def test_a_place_that_is_left_while_the_scheduler_looks(capacity: str, time: Any) -> None:
    """Places are left without the task's lock: from one question to the next there may be fewer holders."""
    clock_at(time, "2026-11-30T10:00:30")
    of = task(**({"concurrency": "skip"} if capacity == "one" else PARALLEL))
    trigger = cron(of)
    clock_at(time, "2026-11-30T10:01:00")
    fire()
    before = Run.objects.get()
    clock_at(time, "2026-11-30T10:02:00")

    def ends(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if "holds_place" in sql and sql.startswith("SELECT"):
            with connection.cursor() as cursor:
                cursor.cursor.execute(f"UPDATE runs SET holds_place = {'false' if PG else '0'}")
        return result

    with connection.execute_wrapper(ends):
        assert fire() == 1
    assert due_times(trigger)[0] == before.scheduled_for
    if capacity == "one":
        assert Skip.objects.get().blocking_run_id == before.pk
    else:
        assert len(due_times(trigger)) == 2


def test_replace_ends_what_waits_and_starts_anew(time: Any) -> None:
    clock_at(time, "2026-11-30T10:00:30")
    trigger = cron(task(concurrency="replace"))
    for minute in (1, 2):
        clock_at(time, f"2026-11-30T10:0{minute}:00")
        assert fire() == 1
    assert list(Run.objects.order_by("pk").values_list("status", flat=True)) == ["cancelled", "queued"]
    assert len(due_times(trigger)) == 2


def test_jitter_moves_the_start_and_not_the_due_time(time: Any) -> None:
    clock_at(time, "2026-11-30T10:00:30")
    trigger = interval(task(), 3_600_000, jitter_ms=600_000)
    assert trigger.due_at is not None and trigger.fire_at is not None
    moved = trigger.fire_at - trigger.due_at
    assert timedelta(0) < moved <= timedelta(minutes=10)
    time.ms += 3_600_000
    assert fire() == 0
    time.ms += moved // timedelta(milliseconds=1)
    assert fire() == 1
    assert due_times(trigger) == [trigger.due_at]


class TestMisfires:
    @pytest.mark.parametrize(
        ("policy", "started", "dropped"),
        [
            ({"misfire": "skip"}, [], [("missed", 5)]),
            ({"misfire": "latest"}, ["05:00"], [("missed", 4)]),
            ({"misfire": "all", "catch_up_max": 2}, ["04:00", "05:00"], [("missed", 3)]),
            ({"misfire": "all", "catch_up_max": 100}, ["01:00", "02:00", "03:00", "04:00", "05:00"], []),
        ],
    )
    def test_policies(self, time: Any, policy: Any, started: list[str], dropped: Any) -> None:
        clock_at(time, "2026-11-30T00:30:00")
        trigger = cron(task(**PARALLEL), "0 * * * *", **policy)
        clock_at(time, "2026-11-30T05:30:00")
        assert fire("scheduler_down") == 1
        assert due_times(trigger) == [utc(f"2026-11-30T{hour}") for hour in started]
        assert records(trigger) == dropped
        assert fresh(trigger).fire_at == utc("2026-11-30T06:00:00")
        if dropped:
            skip = Skip.objects.get()
            assert (skip.cause, skip.scheduled_for) == ("scheduler_down", utc("2026-11-30T01:00:00"))
            assert skip.last_scheduled_for == utc("2026-11-30T01:00:00") + timedelta(hours=skip.count - 1)
        assert fire() == 0

    def test_the_grace_is_the_limit(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:30:00")
        trigger = cron(task(), "0 * * * *", misfire="skip", misfire_grace_ms=60_000)
        clock_at(time, "2026-11-30T01:01:00")
        fire()
        assert due_times(trigger) == [utc("2026-11-30T01:00")]
        clock_at(time, "2026-11-30T02:01:00.001")
        fire()
        assert records(trigger) == [("missed", 1)]
        assert len(due_times(trigger)) == 1

    def test_one_start_on_time_stands_for_all_that_was_missed(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        trigger = cron(task(**PARALLEL))
        clock_at(time, "2026-11-30T00:10:10")
        fire()
        assert due_times(trigger) == [utc("2026-11-30T00:10:00")]
        assert records(trigger) == [("missed", 9)]

    def test_a_rule_of_seconds_that_was_down_for_a_year_is_one_row(self, time: Any) -> None:
        clock_at(time, "2025-11-30T00:00:00")
        trigger = cron(task(**PARALLEL), "* * * * * *", "Europe/Berlin", misfire_grace_ms=0)
        clock_at(time, "2026-11-30T00:00:00")
        with CaptureQueriesContext(connection) as captured:
            fire()
        assert len(captured) < 40
        assert due_times(trigger) == [utc("2026-11-30T00:00:00")]
        assert records(trigger) == [("missed", 365 * 86_400 - 1)]

    def test_more_than_a_hundred_on_time_go_on_in_the_next_pass(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:00")
        trigger = cron(task(**PARALLEL), "* * * * * *", misfire_grace_ms=600_000)
        clock_at(time, "2026-11-30T00:02:30")
        assert [fire(), fire(), fire()] == [1, 1, 0]
        assert len(due_times(trigger)) == 150
        assert records(trigger) == []


class TestStandstill:
    def test_a_disabled_task_leaves_one_open_row_however_long(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:00")
        of = task()
        trigger = cron(of, "* * * * * *")
        task_switch(of, False)
        for _ in range(3):
            time.ms += 10_000
            fire()
        assert records(trigger) == [("task_disabled", 1)]
        skip = Skip.objects.get()
        assert (skip.open, skip.scheduled_for) == (True, utc("2026-11-30T00:00:01"))
        assert (fresh(trigger).fire_at, fresh(trigger).parked) == (None, "task_disabled")
        clock_at(time, "2026-11-30T01:00:00")
        task_switch(of, True)
        assert fire() == 1
        skip = Skip.objects.get()
        assert (skip.open, skip.count, skip.last_scheduled_for) == (False, 3_600, utc("2026-11-30T01:00:00"))
        assert due_times(trigger) == []
        assert (fresh(trigger).fire_at, fresh(trigger).parked) == (utc("2026-11-30T01:00:01"), None)

    def test_enabled_again_before_the_scheduler_came_by(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        of = task()
        trigger = cron(of)
        task_switch(of, False)
        clock_at(time, "2026-11-30T00:05:30")
        task_switch(of, True)
        clock_at(time, "2026-11-30T00:07:10")
        assert fire() == 1
        assert records(trigger) == [("task_disabled", 5)]
        fire()
        assert due_times(trigger) == [utc("2026-11-30T00:07")]

    def test_archived_project_and_back(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        trigger = cron(task())
        project = services.archive_project(grant("project.manage"), 1)
        clock_at(time, "2026-11-30T00:03:30")
        assert fire() == 1
        assert records(trigger) == [("project_archived", 1)]
        services.restore_project(_while_archived(), project.version)
        assert fire() == 1
        assert records(trigger) == [("project_archived", 3)]
        assert fresh(trigger).fire_at == utc("2026-11-30T00:04")

    def test_archived_task(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        of = task()
        trigger = cron(of)
        services.archive_task(grant("task.delete"), of.pk, of.version)
        time.ms += 600_000
        assert [fire(), fire()] == [1, 0]
        assert records(trigger) == [("task_archived", 1)]

    def test_a_disabled_trigger_is_not_looked_at(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        trigger = cron(task())
        assert change(trigger, enabled=False).fire_at is None
        time.ms += 600_000
        assert fire() == 0
        assert change(trigger, enabled=True).fire_at == utc("2026-11-30T00:11")
        assert records(trigger) == [] and due_times(trigger) == []


def _while_archived() -> Grant:
    return people.grant(people.member("owner"), "project.manage", while_archived=True)


class TestBroken:
    def test_a_rule_that_cannot_be_read_stops_nobody_else(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        bad, good = cron(task("bad")), cron(task("good"))
        Trigger.objects.filter(pk=bad.pk).update(timezone="Mars/Phobos")
        clock_at(time, "2026-11-30T00:01:00")
        assert fire() == 2
        assert len(due_times(good)) == 1
        assert records(bad) == [("trigger_broken", 1)]
        assert (fresh(bad).parked, fresh(bad).fire_at) == ("trigger_broken", None)
        mended = change(bad, timezone="Asia/Shanghai")
        assert (mended.parked, mended.fire_at) == (None, utc("2026-11-30T00:02"))
        assert not Skip.objects.filter(open=True).exists()

    def test_a_bug_in_one_rule_is_that_ones_trouble(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        bad, good = cron(task("bad")), cron(task("good"))
        clock_at(time, "2026-11-30T00:01:00")
        real = firing.planning.aim

        def aim(trigger: Trigger, due: Any) -> None:
            real(trigger, due)
            if trigger.pk == bad.pk:
                raise RuntimeError("a bug")

        with patch.object(firing.planning, "aim", aim):
            assert fire() == 2
        assert (len(due_times(good)), due_times(bad), records(bad)) == (1, [], [("trigger_broken", 1)])
        assert fresh(bad).due_at == utc("2026-11-30T00:01:00")

    def test_a_bug_in_starting_one_is_that_ones_trouble(self, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        bad, good = cron(task("bad")), cron(task("good"))
        clock_at(time, "2026-11-30T00:01:00")
        real = firing.start_due

        def start(actor: str, starts: Any, *rest: Any) -> Any:
            if any(one.trigger_id == bad.pk for one in starts):
                raise KeyError("a bug")
            return real(actor, starts, *rest)

        with patch.object(firing, "start_due", start):
            assert fire() == 2
        assert (len(due_times(good)), due_times(bad), records(bad)) == (1, [], [("trigger_broken", 1)])
