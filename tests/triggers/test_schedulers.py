"""Several schedulers at once, killed ones, set clocks: each due time starts once (api.md, "Trigger")."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time as system_time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import OperationalError, connection

from apps.core import clock, wakeups
from apps.core.errors import Busy, VersionConflict
from apps.dispatch import scheduler
from apps.runs.errors import TaskDisabled
from apps.runs.models import Run, RunAttempt, RunEvent, Skip
from apps.tasks.models import Task
from apps.triggers import CHANNEL, scheduling, services
from apps.triggers.models import ClockJump, Trigger
from apps.triggers.services import firing
from tests.runs.kit import check_history, race, start, task
from tests.triggers.kit import (
    change,
    clock_at,
    cron,
    due_times,
    fire,
    interval,
    made,
    records,
    task_switch,
    utc,
)

ROOT = Path(__file__).resolve().parents[2]
PARALLEL = {"concurrency": "parallel", "max_parallel": 1_000}


def started() -> list[tuple[UUID | None, datetime | None]]:
    return list(Run.objects.filter(trigger_id__isnull=False).values_list("trigger_id", "scheduled_for"))


def whole() -> None:
    """Every run has its attempt and its events, and no due time came twice."""
    assert max(Counter(started()).values(), default=1) == 1
    assert RunAttempt.objects.count() == Run.objects.count()
    for run in Run.objects.all():
        check_history(run)


class TestRaces:
    def test_four_schedulers_one_moment(self, seeded: None, time: Any) -> None:
        clock_at(time, "2026-11-30T00:00:30")
        tasks = [task(f"t{number}", **PARALLEL) for number in range(6)]
        triggers = [cron(tasks[number % 6]) for number in range(36)]
        for minute in range(1, 4):
            clock_at(time, f"2026-11-30T00:0{minute}:00.100")
            results = race([fire] * 8, threads=4)
            assert not [result for result in results if isinstance(result, Exception)], results
            while fire():
                pass
            assert len(started()) == 36 * minute
        whole()
        assert {len(due_times(trigger)) for trigger in triggers} == {3}

    def test_beside_people_who_change_everything(self, seeded: None, time: Any) -> None:
        """No deadlock, no double start; what was disabled in time does not start."""
        clock_at(time, "2026-11-30T00:00:30")
        tasks = [task(f"t{number}", **PARALLEL) for number in range(4)]
        triggers = [cron(tasks[number % 4]) for number in range(16)]
        clock_at(time, "2026-11-30T00:01:00")

        def quietly(call: Any) -> Any:
            def run() -> Any:
                for _ in range(20):
                    try:
                        return call()
                    except (VersionConflict, Busy):
                        continue
                    except TaskDisabled:
                        return None
                return None

            return run

        calls = [
            *[fire] * 6,
            *[quietly(lambda t=trigger: change(t, jitter_ms=5)) for trigger in triggers[:4]],
            *[quietly(lambda t=each: start(t)) for each in tasks],
            *[quietly(lambda t=each: task_switch(t, False)) for each in tasks[:2]],
            quietly(lambda: services.arm_boot(UUID(int=7))),
        ]
        random.Random(3).shuffle(calls)
        results = race(calls, threads=6)
        assert not [result for result in results if isinstance(result, Exception)], results
        while fire():
            pass
        whole()
        for trigger in triggers[4:]:
            assert len(due_times(trigger)) + len(records(trigger)) == 1

    def test_one_boot_for_all(self, seeded: None) -> None:
        trigger = made(task(), "boot").trigger
        boot = UUID("0190a000-0000-7000-8000-000000000001")
        assert Counter(race([lambda: services.arm_boot(boot)] * 4)) == {True: 1, False: 3}
        race([fire] * 3)
        assert len(due_times(trigger)) == 1

    def test_a_task_in_somebodys_hands_keeps_nobody_else_waiting(self, seeded: None, time: Any) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("SQLite has one writer at a time")
        from threading import Event, Thread

        from django.db import transaction

        clock_at(time, "2026-11-30T00:00:30")
        held, free = task("held"), task("free")
        triggers = [cron(held), cron(free)]
        clock_at(time, "2026-11-30T00:01:00")
        locked, done = Event(), Event()

        def hold() -> None:
            with transaction.atomic():
                Task.objects.select_for_update().get(pk=held.pk)
                locked.set()
                done.wait(10)
            connection.close()

        thread = Thread(target=hold)
        thread.start()
        locked.wait(10)
        try:
            assert fire() == 1
            assert [len(due_times(trigger)) for trigger in triggers] == [0, 1]
        finally:
            done.set()
            thread.join()
        assert fire() == 1
        assert len(due_times(triggers[0])) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", ["start_due", "skips.insert", "_store", "planning.aim"])
def test_a_pass_that_dies_anywhere_has_done_nothing(step: str, seeded: None, time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    trigger = cron(task())
    late = cron(task("late"), misfire="skip")
    clock_at(time, "2026-11-30T00:01:10")
    Trigger.objects.filter(pk=late.pk).update(due_at=utc("2026-11-29"), fire_at=utc("2026-11-29"))
    before = list(Trigger.objects.order_by("pk").values())
    broken = patch(f"apps.triggers.services.firing.{step}", side_effect=OperationalError("gone"))
    with broken, pytest.raises(OperationalError):
        fire()
    assert list(Trigger.objects.order_by("pk").values()) == before
    assert not Run.objects.exists() and not RunEvent.objects.exists() and not Skip.objects.exists()
    assert fire() == 2
    assert len(due_times(trigger)) == 1
    whole()


class Processes:
    """`manage.py scheduler` on the test's database."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.running: list[subprocess.Popen[bytes]] = []
        self.seen = 0

    def add(self) -> subprocess.Popen[bytes]:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("QINGLONG_")},
            "DJANGO_SETTINGS_MODULE": "tests.session_settings",
            "TEST_DATABASE": str(connection.settings_dict["NAME"]),
            "QINGLONG_HOME": str(self.home),
            "QINGLONG_TIME_ZONE": "UTC",
        }
        log = (self.home / "scheduler.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "manage.py", "scheduler"], cwd=ROOT, env=env, stdout=log, stderr=log
        )
        log.close()
        self.running.append(process)
        return process

    def ready(self, number: int) -> None:
        log = self.home / "scheduler.log"
        give_up = system_time.monotonic() + 30
        while (seen := log.read_text().count("scheduler is ready")) < number:
            assert system_time.monotonic() < give_up, log.read_text()
            system_time.sleep(0.05)
        self.seen = seen

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.running.remove(process)

    def finish(self) -> None:
        for process in list(self.running):
            self.kill(process)


@pytest.fixture
def processes(seeded: None, tmp_path: Path, settings: Any) -> Iterator[Processes]:
    # Nudges find the schedulers of this node by its folder.
    settings.NODE_DIR = tmp_path / "node"
    found = Processes(tmp_path)
    try:
        yield found
    finally:
        found.finish()


@pytest.mark.e2e
def test_schedulers_killed_again_and_again_lose_nothing_and_start_nothing_twice(processes: Processes) -> None:
    tasks = [task(f"t{number}", **PARALLEL) for number in range(5)]
    processes.add()
    processes.add()
    processes.ready(2)
    triggers = [interval(tasks[number % 5], 1_000 + 100 * (number % 7)) for number in range(30)]
    rnd = random.Random(11)
    kills, end = 0, system_time.monotonic() + 14
    while system_time.monotonic() < end or kills < 6:
        # The older one, at any moment of a pass; the other goes on, or both are gone for a while.
        system_time.sleep(rnd.uniform(0.05, 0.8))
        for process in processes.running[: rnd.choice([1, 1, 2])]:
            processes.kill(process)
            processes.add()
            kills += 1
        processes.ready(processes.seen + 1)
    system_time.sleep(2)
    for process in list(processes.running):
        process.terminate()
        process.wait(20)
    processes.running.clear()
    fire()
    whole()
    for trigger in triggers:
        found = due_times(trigger)
        steps = {later - earlier for earlier, later in pairwise(found)}
        assert len(found) >= 6 and steps == {timedelta(milliseconds=trigger.every_ms or 0)}
        assert records(trigger) == []


@pytest.mark.e2e
def test_a_sleeping_scheduler_is_woken_by_a_change(processes: Processes) -> None:
    of = task(**PARALLEL)
    processes.add()
    processes.ready(1)
    system_time.sleep(1.5)
    late = []
    for _ in range(3):
        at = clock.now() + timedelta(milliseconds=700)
        trigger = made(of, "once", at=at).trigger
        give_up = system_time.monotonic() + 6
        while not due_times(trigger) and system_time.monotonic() < give_up:
            system_time.sleep(0.02)
        run = Run.objects.get(trigger_id=trigger.pk)
        late.append((run.created_at - at).total_seconds())
    # Without the nudge it would be up to five seconds.
    assert sorted(late)[1] < 1.0, late


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
