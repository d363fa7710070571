"""The scheduler's clock and its alarms: who is called when."""

from __future__ import annotations

import time as system_time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import OperationalError

from apps.core import clock, wakeups
from apps.dispatch import scheduler
from apps.runs.models import Run, Skip
from apps.triggers import CHANNEL, scheduling
from apps.triggers.models import ClockJump
from apps.triggers.services import firing
from tests.runs.kit import task
from tests.triggers.kit import (
    clock_at,
    cron,
    due_times,
    made,
    records,
    utc,
)
from tests.triggers.test_schedulers import PARALLEL


class Steady:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.mark.django_db
class TestClock:
    @pytest.fixture
    def steady(self) -> Steady:
        return Steady()

    def step(self, time: Any, steady: Steady, seconds: float, wall: float | None = None) -> None:
        steady.at += seconds
        time.ms += int((seconds if wall is None else wall) * 1000)

    def test_asks_to_be_called_when_the_next_trigger_is_due(self, time: Any, steady: Steady) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        pulse = scheduling.Pulse(steady)
        assert pulse(clock.now()) is None
        cron(task())
        assert pulse(clock.now()) == utc("2026-11-30T00:01:00")
        self.step(time, steady, 30)
        assert pulse(clock.now()) == utc("2026-11-30T00:02:00")
        assert Run.objects.count() == 1
        assert not ClockJump.objects.exists()

    def test_what_others_are_at_is_no_busy_loop(self, time: Any, steady: Steady) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        cron(task())
        clock_at(time, "2026-11-30T00:01:00")
        pulse = scheduling.Pulse(steady)
        with patch.object(scheduling, "fire_due", return_value=0):
            assert pulse(clock.now()) == clock.now() + scheduling.ASIDE

    def test_a_clock_set_forward(self, time: Any, steady: Steady) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        trigger = cron(task(), "0 * * * *")
        pulse = scheduling.Pulse(steady)
        pulse(clock.now())
        self.step(time, steady, 1, wall=5.5 * 3600)
        pulse(clock.now())
        jump = ClockJump.objects.get()
        assert jump.by_ms == int((5.5 * 3600 - 1) * 1000)
        assert due_times(trigger) == [utc("2026-11-30T05:00")]
        skip = Skip.objects.get()
        assert (skip.reason, skip.cause, skip.count) == ("missed", "clock_jump", 4)

    def test_a_clock_set_back(self, time: Any, steady: Steady) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        trigger = cron(task(**PARALLEL))
        pulse = scheduling.Pulse(steady)
        for _ in range(3):
            self.step(time, steady, 60)
            pulse(clock.now())
        assert len(due_times(trigger)) == 3
        self.step(time, steady, 1, wall=-150)
        for _ in range(4):
            pulse(clock.now())
            self.step(time, steady, 60)
        assert ClockJump.objects.get().by_ms == -151_000
        pulse(clock.now())
        assert due_times(trigger) == [utc(f"2026-11-30T00:0{minute}") for minute in (1, 2, 3, 4, 5)]
        assert records(trigger) == []

    def test_small_corrections_are_none(self, time: Any, steady: Steady) -> None:
        pulse = scheduling.Pulse(steady)
        for wall in (1.5, 0.2, 60.9):
            self.step(time, steady, 1 if wall < 2 else 60, wall=wall)
            pulse(clock.now())
        assert not ClockJump.objects.exists()

    def test_why_it_was_missed(self, time: Any, steady: Steady) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        before = cron(task("a"), "0 * * * *", misfire="skip")
        clock_at(time, "2026-11-30T01:30:00")
        pulse = scheduling.Pulse(steady)
        pulse(clock.now())
        assert Skip.objects.get(trigger_id=before.pk).cause == "scheduler_down"
        Skip.objects.all().delete()
        self.step(time, steady, 3600)
        pulse(clock.now())
        assert Skip.objects.get(trigger_id=before.pk).cause == "late"

    def test_boot_only_inside_up(self, time: Any, steady: Steady) -> None:
        trigger = made(task(), "boot").trigger
        scheduling.Pulse(steady)(clock.now())
        assert due_times(trigger) == []
        with patch.object(scheduler, "boot_id", UUID(int=1)):
            for pulse in (scheduling.Pulse(steady), scheduling.Pulse(steady)):
                pulse(clock.now())
                pulse(clock.now())
        assert len(due_times(trigger)) == 1


class TestAlarms:
    """The scheduler's loop as far as alarms go."""

    def clock_of(self, alarm: Any) -> scheduler._Clock:
        return scheduler._Clock("test", alarm, CHANNEL, clock.now(), checked_at=system_time.monotonic())

    @pytest.fixture(autouse=True)
    def _node(self, tmp_path: Path, settings: Any) -> None:
        settings.NODE_DIR = tmp_path / "node"

    @pytest.mark.django_db(transaction=True)
    def test_called_when_due_and_when_nudged(self, time: Any) -> None:
        calls: list[datetime] = []

        def alarm(now: datetime) -> datetime | None:
            calls.append(now)
            return now + timedelta(hours=1)

        each = self.clock_of(alarm)
        scheduler._go_off(each)
        scheduler._go_off(each)
        assert len(calls) == 1 and scheduler._pause(each) == 3600
        wakeups_nudge()
        assert each.listener is not None
        import select

        assert select.select([each.listener], [], [], 5)[0]
        scheduler._hear(each)
        scheduler._go_off(each)
        assert len(calls) == 2
        time.ms += 3_600_000
        scheduler._go_off(each)
        assert len(calls) == 3
        each.listener.close()

    @pytest.mark.django_db(transaction=True)
    def test_a_failure_is_tried_again_in_a_moment(self, time: Any) -> None:
        def alarm(_now: datetime) -> datetime | None:
            raise OperationalError("away")

        each = self.clock_of(alarm)
        scheduler._go_off(each)
        assert each.next_at == clock.now() + timedelta(seconds=1)
        assert each.listener is not None
        each.listener.close()
        scheduler._hear(each)
        assert each.listener is None


def wakeups_nudge() -> None:
    from apps.core.db import write_transaction

    write_transaction(wakeups.nudge)(CHANNEL)


def test_the_pass_is_the_one_the_scheduler_calls() -> None:
    assert scheduling.fire_due is firing.fire_due
    make, channel = scheduler._alarms["triggers"]
    assert (make, channel) == (scheduling.Pulse, CHANNEL)
