"""lessons.md D1–D6, D17, D21 and panel-2x.md §4.2–4.3, as far as they speak of schedules, by their numbers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test.utils import override_script_prefix

from apps.runs.models import Run, RunEvent, Skip
from apps.triggers import due, services
from apps.triggers.errors import ScheduleInvalid
from apps.triggers.schedules.preview import preview
from tests.people import api, member
from tests.runs.kit import grant, task
from tests.triggers.kit import change, clock_at, cron, due_times, fire, fresh, made, records, task_switch, utc

pytestmark = pytest.mark.django_db
PARALLEL = {"concurrency": "parallel", "max_parallel": 100}


def fire_through(time: Any, *moments: str) -> None:
    for moment in moments:
        clock_at(time, moment)
        fire()


def test_d1_the_critical_job_of_the_night_the_clocks_change(time: Any) -> None:
    clock_at(time, "2026-03-28T20:00:00")
    of = task(**PARALLEL)
    fixed, steps = cron(of, "30 2 * * *", "Europe/Berlin"), cron(of, "*/30 1-3 * * *", "Europe/Berlin")
    fire_through(time, *[f"2026-03-29T0{hour}:{minute}:00" for hour in range(3) for minute in ("00", "30")])
    assert due_times(fixed) == [utc("2026-03-29T01:00")], "once, right behind the gap"
    assert due_times(steps) == [utc(f"2026-03-29T0{at}") for at in ("0:00", "0:30", "1:00", "1:30")]
    clock_at(time, "2026-10-24T20:00:00")
    for trigger in (fixed, steps):
        change(trigger, enabled=False)
        change(trigger, enabled=True)
    Run.objects.update(idempotency_key=None, trigger_id=None)
    fire_through(time, *[f"2026-10-25T0{hour}:{minute}:00" for hour in range(3) for minute in ("00", "30")])
    assert due_times(fixed) == [utc("2026-10-25T00:30")], "once, the first time"
    # 02:00 and 02:30 come twice, 03:00 and 03:30 behind them.
    assert due_times(steps) == [
        utc(f"2026-10-25T0{at}") for at in ("0:00", "0:30", "1:00", "1:30", "2:00", "2:30")
    ]
    told = preview("cron", schedule="30 2 * * *", timezone="Europe/Berlin", now=utc("2026-03-28"))
    assert [item.rule for item in told.clock_changes] == ["moved", "once"]


def test_d2_every_schedule_has_its_own_zone(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:00")
    of = task()
    zones = ("Asia/Shanghai", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
    assert [cron(of, "0 9 * * *", zone).due_at for zone in zones] == [
        utc("2026-11-30T01:00"), utc("2026-11-30T08:00"), utc("2026-11-30T14:00"), utc("2026-11-30T22:00"),
    ]  # fmt: skip
    with pytest.raises(ScheduleInvalid) as caught:
        cron(of, "CRON_TZ=Asia/Shanghai 0 9 * * *")
    assert caught.value.extra["reason"] == "zone_prefix"


def test_d3_a_quartz_rule_is_refused_and_a_frequent_one_warned_of() -> None:
    with pytest.raises(ScheduleInvalid):
        cron(task(), "30 5/10 * * * ?")
    told = preview("cron", schedule="30 5/10 * * * *", timezone="UTC")
    assert told.words.startswith("At second 30, at the minutes 5, 15")
    assert "frequent" in {warning.code for warning in preview("cron", schedule="*/5 * * * * *").warnings}


def test_d4_no_burst_after_an_outage_and_catching_up_can_be_purged(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    default = cron(task(), "*/5 * * * *")
    of = task("all")
    everything = cron(of, "*/5 * * * *", misfire="all", catch_up_max=50)
    clock_at(time, "2026-11-30T03:02:00")
    fire()
    assert len(due_times(default)) == 1
    assert records(default) == [("missed", 35)]
    assert len(due_times(everything)) == 36
    assert services.empty_queue(grant("run.stop"), of.pk) == 36


def test_d5_a_skipped_slot_leaves_a_record(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    trigger = cron(task(concurrency="skip"))
    fire_through(time, "2026-11-30T00:01:00", "2026-11-30T00:02:00", "2026-11-30T00:03:00")
    assert len(due_times(trigger)) == 1
    assert records(trigger) == [("concurrency_skipped", 1)] * 2


def test_d6_disabling_empties_the_queue_and_nothing_comes_after(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task()
    trigger = cron(of)
    fire_through(time, "2026-11-30T00:01:00", "2026-11-30T00:02:00")
    task_switch(of, False)
    assert set(Run.objects.values_list("status", flat=True)) == {"cancelled"}
    fire_through(time, "2026-11-30T00:03:00", "2026-11-30T00:04:00")
    assert len(due_times(trigger)) == 2


def test_d17_one_way_for_every_start(time: Any) -> None:
    """By hand, on a schedule, by a webhook: the same events, the same revision, the same place."""
    from tests.runs.kit import run_of

    clock_at(time, "2026-11-30T00:00:30")
    of = task(timeout_ms=60_000, **PARALLEL)
    cron(of)
    fire_through(time, "2026-11-30T00:01:00")
    by_schedule = Run.objects.get()
    by_hand = run_of(of)
    hook = made(of, "webhook")
    from apps.triggers.services.hooks import Delivery, receive

    by_hook = receive(hook.trigger, Delivery(b"{}")).run  # type: ignore[union-attr]
    stories = [
        list(RunEvent.objects.filter(run=run).order_by("sequence").values_list("type", "dedupe_key"))
        for run in (by_schedule, by_hand, by_hook)
    ]
    assert stories[0] == stories[1] == stories[2]
    same = [
        (run.task_revision, run.status, run.holds_place, run.priority, run.version)
        for run in (by_schedule, by_hand, by_hook)
    ]
    assert len(set(same)) == 1


def test_d21_the_address_of_a_webhook_obeys_the_sub_path(settings: Any) -> None:
    task(slug="nightly")
    settings.PREFIX = "/ql"
    settings.BASE_URL = "https://panel.example/ql"
    owner = api(member("owner"))
    with override_script_prefix("/ql/"):
        made_one = owner("POST", "projects/default/tasks/nightly/triggers", {"kind": "webhook"}).json()
    assert made_one["url"].startswith("https://panel.example/ql/hooks/ql3h_")


def test_panel_2x_4_2_extra_rules_and_kinds(time: Any) -> None:
    """Several rules for one task; regular, manual and on boot."""
    clock_at(time, "2026-11-30T00:00:30")
    of = task(**PARALLEL)
    triggers = [cron(of, rule, "Asia/Shanghai") for rule in ("0 9 * * *", "0 21 * * *", "30 0 9 * * *")]
    manual, boot = cron(of, "@once"), made(of, "cron", schedule="@boot").trigger
    assert (manual.fire_at, boot.kind, boot.fire_at) == (None, "boot", None)
    fire_through(time, "2026-11-30T01:00:00", "2026-11-30T01:00:30", "2026-11-30T13:00:00")
    assert [len(due_times(trigger)) for trigger in triggers] == [1, 1, 1]


def test_idea_2_every_non_run_leaves_a_row(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task(concurrency="skip")
    trigger = cron(of, misfire="skip", misfire_grace_ms=1_000)
    fire_through(time, "2026-11-30T00:01:00", "2026-11-30T00:02:00", "2026-11-30T00:05:30")
    task_switch(of, False)
    fire_through(time, "2026-11-30T00:06:00", "2026-11-30T00:09:30")
    task_switch(of, True)
    fire()
    runs = len(due_times(trigger))
    assert runs + sum(Skip.objects.values_list("count", flat=True)) == 9
    entries = due.timeline(of, since=utc("2026-11-30T00:00"), until=utc("2026-11-30T00:09:31")).items
    assert [entry.status for entry in entries] == ["ran", "skipped", *["missed"] * 3, *["disabled"] * 4]
    assert fresh(trigger).fire_at == utc("2026-11-30T00:10")
