"""Why did it not run? Each due time with what became of it (lessons, idea 2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import health
from apps.core.errors import InvalidInput
from apps.runs.models import Run
from apps.triggers import due, services
from apps.triggers.models import Trigger
from tests.people import api, member
from tests.runs.kit import grant, start, task
from tests.triggers.kit import change, clock_at, cron, fire, fresh, grants, interval, made, task_switch, utc

pytestmark = pytest.mark.django_db
PARALLEL = {"concurrency": "parallel", "max_parallel": 100}


def told(of: Any, since: str, until: str, **options: Any) -> list[tuple[str, str, str | None]]:
    found = due.timeline(of, since=utc(since), until=utc(until), **options)
    return [(entry.due_at.strftime("%H:%M"), entry.status, entry.reason) for entry in found.items]


def test_a_night_in_one_list(time: Any) -> None:
    clock_at(time, "2026-11-30T00:30:00")
    of = task()
    trigger = cron(of, "0 * * * *")
    clock_at(time, "2026-11-30T01:00:00")
    fire()
    clock_at(time, "2026-11-30T02:00:00")
    fire()
    clock_at(time, "2026-11-30T05:30:00")
    fire("scheduler_down")
    task_switch(of, False)
    clock_at(time, "2026-11-30T06:00:00")
    fire()
    clock_at(time, "2026-11-30T08:30:00")
    task_switch(of, True)
    fire()
    change(trigger, enabled=False)
    clock_at(time, "2026-11-30T10:30:00")
    change(trigger, enabled=True)
    clock_at(time, "2026-11-30T11:00:00")
    fire()
    assert told(of, "2026-11-30T00:00", "2026-11-30T13:00") == [
        ("01:00", "ran", "cancelled"),
        ("02:00", "ran", "cancelled"),
        ("03:00", "missed", "scheduler_down"),
        ("04:00", "missed", "scheduler_down"),
        ("05:00", "ran", "cancelled"),
        ("06:00", "disabled", "task_disabled"),
        ("07:00", "disabled", "task_disabled"),
        ("08:00", "disabled", "task_disabled"),
        ("09:00", "disabled", "trigger_disabled"),
        ("10:00", "disabled", "trigger_disabled"),
        ("11:00", "waits", "queued"),
        ("12:00", "planned", None),
    ]
    entries = due.timeline(of, since=utc("2026-11-30T00:00"), until=utc("2026-11-30T13:00")).items
    by_hour = {entry.due_at.hour: entry for entry in entries}
    assert (by_hour[3].since, by_hour[3].until, by_hour[3].action) == (
        utc("2026-11-30T03:00"), utc("2026-11-30T04:00"), "check_scheduler",
    )  # fmt: skip
    assert (by_hour[7].by, by_hour[7].since, by_hour[7].action) == (
        ("system", "tests"), utc("2026-11-30T05:30"), "enable_task",
    )  # fmt: skip
    assert (by_hour[9].by, by_hour[9].since, by_hour[9].action) == (
        ("system", "tests"), utc("2026-11-30T08:30"), "enable_trigger",
    )  # fmt: skip
    assert (by_hour[11].waiting_for, by_hour[11].action) == ("worker", "add_worker")
    assert by_hour[11].sentence == "It waits: no worker takes runs."
    assert by_hour[1].rule == "Every hour on the hour"
    assert all(entry.sentence and entry.action for entry in entries)


def test_places(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task()
    blocking = start(of).run
    cron(of)
    skipping = task("skipping", concurrency="skip")
    start(skipping)
    cron(skipping)
    clock_at(time, "2026-11-30T00:01:00")
    fire()
    waits = due.timeline(of, since=utc("2026-11-30T00:01"), until=utc("2026-11-30T00:02")).items[0]
    assert (waits.status, waits.waiting_for, waits.action) == ("waits", "place", "stop_blocking_run")
    skipped = due.timeline(skipping, since=utc("2026-11-30T00:01"), until=utc("2026-11-30T00:02")).items[0]
    assert (skipped.status, skipped.reason, skipped.action) == (
        "skipped",
        "concurrency_skipped",
        "stop_blocking_run",
    )
    Run.objects.exclude(pk=blocking.pk).update(status="succeeded", finished_at=utc("2026-11-30T00:02"))
    again = due.timeline(skipping, since=utc("2026-11-30T00:01"), until=utc("2026-11-30T00:02")).items[0]
    assert again.action == "change_concurrency"


def test_the_rules_of_that_time_count(time: Any) -> None:
    clock_at(time, "2026-11-30T00:30:00")
    of = task(**PARALLEL)
    trigger = cron(of, "0 * * * *")
    clock_at(time, "2026-11-30T01:00:00")
    fire()
    clock_at(time, "2026-11-30T01:10:00")
    change(trigger, schedule="15,45 * * * *")
    for at in ("2026-11-30T01:15:00", "2026-11-30T01:45:00"):
        clock_at(time, at)
        fire()
    clock_at(time, "2026-11-30T02:05:00")
    services.delete_trigger(*grants(), of.pk, trigger.pk, 2)
    clock_at(time, "2026-11-30T05:00:00")
    assert told(of, "2026-11-30T00:00", "2026-11-30T05:00") == [
        ("01:00", "waits", "queued"), ("01:15", "waits", "queued"), ("01:45", "waits", "queued"),
    ]  # fmt: skip


def test_clock_changes(time: Any) -> None:
    clock_at(time, "2026-03-28T12:00:00")
    of = task(**PARALLEL)
    fixed = cron(of, "30 2 * * *", "Europe/Berlin")
    by_clock = cron(of, "*/30 2 * * *", "Europe/Berlin")
    clock_at(time, "2026-03-29T01:00:00")
    assert fire() == 1
    found = due.timeline(of, since=utc("2026-03-28T12:00"), until=utc("2026-03-29T12:00")).items
    assert {(entry.trigger_id, entry.status, entry.change) for entry in found} == {
        (fixed.pk, "waits", "moved"), (by_clock.pk, "left_out", None),
    }  # fmt: skip
    assert all("that day" in entry.sentence for entry in found)
    clock_at(time, "2026-10-24T12:00:00")
    Trigger.objects.update(due_at=utc("2026-10-25"), fire_at=utc("2026-10-25"))
    later = due.timeline(of, since=utc("2026-10-24T12:00"), until=utc("2026-10-25T12:00")).items
    assert sorted((entry.due_at.hour, entry.due_at.minute, entry.change) for entry in later) == [
        (0, 0, "first_of_two"), (0, 30, "first_of_two"), (0, 30, "first_of_two"),
        (1, 0, "second_of_two"), (1, 30, "second_of_two"),
    ]  # fmt: skip
    assert sum(entry.trigger_id == fixed.pk for entry in later) == 1


def test_jitter_and_what_nobody_has_looked_at(time: Any) -> None:
    clock_at(time, "2026-11-30T00:30:00")
    of = task()
    trigger = cron(of, "0 * * * *", jitter_ms=600_000)
    assert trigger.fire_at is not None
    clock_at(time, "2026-11-30T01:00:00.001")
    entry = due.timeline(of, since=utc("2026-11-30T01:00"), until=utc("2026-11-30T01:30")).items[0]
    assert (entry.status, entry.fire_at) == ("planned", trigger.fire_at)
    assert entry.document()["jitter_ms"] == (trigger.fire_at - trigger.due_at) // timedelta(milliseconds=1)  # type: ignore[operator]
    clock_at(time, "2026-11-30T03:30:00")
    assert told(of, "2026-11-30T01:00", "2026-11-30T03:30") == [
        (hour, "missed", "scheduler_down") for hour in ("01:00", "02:00", "03:00")
    ]
    assert health_of() is not None


def health_of() -> str | None:
    wrong = health._checks["due_triggers"].check()
    return None if wrong is None else str(wrong)


def test_healthy_while_nothing_is_overdue(time: Any) -> None:
    clock_at(time, "2026-11-30T00:30:00")
    assert health_of() is None
    cron(task())
    clock_at(time, "2026-11-30T00:32:59")
    assert health_of() is None
    clock_at(time, "2026-11-30T00:33:00")
    assert "due for 120 s" in health_of()
    fire()
    assert health_of() is None


def test_archived_and_boot(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task()
    cron(of)
    boot = made(of, "boot").trigger
    clock_at(time, "2026-11-30T00:00:40")
    from uuid import UUID

    services.arm_boot(UUID(int=5))
    fire()
    services.archive_project(grant("project.manage"), 1)
    clock_at(time, "2026-11-30T00:02:30")
    fire()
    assert told(of, "2026-11-30T00:00", "2026-11-30T00:03") == [
        ("00:00", "ran", "cancelled"),
        ("00:01", "archived", "project_archived"),
        ("00:02", "archived", "project_archived"),
    ]
    assert (
        due.timeline(of, since=utc("2026-11-30T00:00"), until=utc("2026-11-30T00:01")).items[0].trigger_id
        == boot.pk
    )


def test_a_broken_rule_is_told(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task()
    bad = cron(of)
    Trigger.objects.filter(pk=bad.pk).update(timezone="Mars/Phobos")
    clock_at(time, "2026-11-30T00:01:00")
    fire()
    entry = due.timeline(of, since=utc("2026-11-30T00:01"), until=utc("2026-11-30T00:02")).items[0]
    assert (entry.status, entry.reason, entry.action) == ("skipped", "trigger_broken", "change_rule")
    assert fresh(bad).parked == "trigger_broken"


def test_pages_are_bounded_and_go_on(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:00")
    of = task(**PARALLEL)
    for offset in range(3):
        interval(of, 1_000, anchor_at=utc("2026-11-30T00:00:00"), jitter_ms=offset)
    clock_at(time, "2026-12-30T00:00:00")
    seen = []
    cursor = None
    for _ in range(4):
        with CaptureQueriesContext(connection) as captured:
            page = due.timeline(of, since=utc("2026-11-30"), until=utc("2026-12-30"), limit=50, cursor=cursor)
        assert len(captured) <= 8
        seen += [(entry.due_at, entry.trigger_id) for entry in page.items]
        cursor = page.next_cursor
        assert cursor is not None
    assert len(seen) == len(set(seen)) == 200
    assert seen == sorted(seen)
    for since in ("2025-01-01", "2026-12-30"):
        with pytest.raises(InvalidInput):
            due.timeline(of, since=utc(since), until=utc("2026-12-30"))


def test_a_long_list_of_skips_costs_no_more_queries(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task(concurrency="skip")
    cron(of)
    for minute in range(1, 21):
        clock_at(time, f"2026-11-30T00:{minute:02}:00")
        fire()
    counts = []
    for until in ("2026-11-30T00:04", "2026-11-30T00:21"):
        with CaptureQueriesContext(connection) as captured:
            found = due.timeline(of, since=utc("2026-11-30T00:00"), until=utc(until)).items
        assert {entry.status for entry in found} == {"waits", "skipped"}
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_over_the_api(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task(slug="nightly")
    cron(of)
    clock_at(time, "2026-11-30T00:01:00")
    fire()
    viewer = api(member("viewer"))
    url = "projects/default/tasks/nightly/due"
    run = Run.objects.get()
    span = "since=2026-11-30T00:00:00Z&until=2026-11-30T00:05:00Z&limit=2"
    answer = viewer("GET", f"{url}?{span}")
    assert answer.status_code == 200
    body = answer.json()
    assert [entry["status"] for entry in body["items"]] == ["waits", "planned"]
    assert body["items"][0]["run"] == {"id": str(run.pk), "status": "queued"}
    following = viewer("GET", f"{url}?{span}&cursor={body['next_cursor']}")
    assert [entry["due_at"][14:16] for entry in following.json()["items"]] == ["03", "04"]
    assert viewer("GET", f"{url}?since=yesterday").status_code == 400
    assert viewer("GET", f"{url}?cursor=x").json()["code"] == "cursor_invalid"
    clock_at(time, "2026-11-30T00:01:30")
    assert [entry["run"]["id"] for entry in viewer("GET", url).json()["items"]] == [str(run.pk)]
    other = viewer("GET", f"{url}?since=2026-11-30T00:00:00Z&limit=2&cursor={body['next_cursor']}")
    assert other.json()["code"] == "cursor_mismatch"


def test_skips_over_the_api_say_all(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task(slug="nightly")
    cron(of, misfire="skip")
    clock_at(time, "2026-11-30T00:10:30")
    Trigger.objects.update(misfire_grace_ms=0)
    fire("scheduler_down")
    task_switch(of, False)
    clock_at(time, "2026-11-30T00:20:30")
    fire()
    clock_at(time, "2026-11-30T00:25:30")
    items = api(member("viewer"))("GET", "projects/default/skips?task=nightly").json()["items"]
    assert [(i["reason"], i["cause"], i["count"], i["open"]) for i in items] == [
        ("task_disabled", None, 15, True), ("missed", "scheduler_down", 10, False),
    ]  # fmt: skip
    assert items[0]["last_scheduled_for"] == "2026-11-30T00:25:00.000Z"
    assert [i["sentence"] for i in items] == ["The task was disabled.", "No scheduler was running."]
