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

from apps.core import clock
from apps.core.errors import Busy, VersionConflict
from apps.runs.errors import TaskDisabled
from apps.runs.models import Run, RunAttempt, RunEvent, Skip
from apps.tasks.models import Task
from apps.triggers import services
from apps.triggers.models import Trigger
from tests.dispatch.shim_kit import PATIENCE_S
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
        give_up = system_time.monotonic() + PATIENCE_S
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
    # However long a start takes on a busy machine, what is due meanwhile is not late.
    grace = {"misfire_grace_ms": 3_600_000}
    triggers = [interval(tasks[number % 5], 1_000 + 100 * (number % 7), **grace) for number in range(30)]
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
