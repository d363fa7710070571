"""What runs while nothing happens stays cheap: statements of each part are counted, and so is memory after a fork.

The figures themselves are measured by `bench/idle.py`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django_q.conf import Conf

from apps.core import clock, control, node, wakeups
from apps.core.doorbell import Doorbell
from apps.core.jobs import CONTROL
from apps.core.models import ControlJob
from apps.dispatch import glance, scheduler
from apps.dispatch.presence import BEAT_S, Presence
from apps.dispatch.supervisor import cluster, preload, process
from apps.dispatch.supervisor.tree import Tree
from apps.triggers.scheduling import Pulse
from bench import shim
from tests.conftest import Time
from tests.dispatch.sessions import ROOT
from tests.runs import kit

MINUTE = 60


@pytest.fixture
def here(seeded: None, tmp_path: Path, settings: Any) -> str:
    settings.NODE_DIR = tmp_path / "node"
    control.enrol(clock.now())
    ControlJob.objects.update(due_at=clock.now() + timedelta(hours=1))
    return node.node_id()


class Steady:
    """The steady clock of a module, moved by hand."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def monotonic(self) -> float:
        return self.at

    def time(self) -> float:
        return clock.now().timestamp()


def statements(work: Callable[[], object]) -> list[str]:
    """What `work` asks the database, without what only begins and ends transactions."""
    with CaptureQueriesContext(connection) as seen:
        work()
    found = [query["sql"] for query in seen]
    return [sql for sql in found if not sql.startswith(("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE"))]


def test_an_idle_scheduler_asks_one_question_a_second(
    here: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = Steady()
    monkeypatch.setattr(scheduler, "time", steady)
    monkeypatch.setattr(scheduler, "_ticks", {})
    scheduler._plan(None)
    pulse = Pulse(steady.monotonic)
    pulse(clock.now())
    made: list[Path] = []
    monkeypatch.setattr(Path, "mkdir", lambda path, *_args, **_options: made.append(path))

    def a_minute() -> None:
        for second in range(MINUTE):
            scheduler._tick(clock.now())
            if second % scheduler.ALARM_S == 0:
                pulse(clock.now())
            steady.at += 1
            time.advance(1_000)

    found = statements(a_minute)
    enrolling, alarms = 1, MINUTE // int(scheduler.ALARM_S)
    assert len(found) <= MINUTE + enrolling + alarms
    assert not any(sql.startswith(("UPDATE", "INSERT", "DELETE", "WITH")) for sql in found)
    assert made == [], "who only looks makes no folder"


def test_a_glance_misses_nothing_that_a_look_would_find(here: str, time: Time) -> None:
    assert glance.take(clock.now()) == glance.Glance(due=False, unanswered=False, carried=False)
    scheduler._ring(CONTROL)
    assert glance.take(clock.now()).unanswered
    wakeups.answer(CONTROL)
    assert not glance.take(clock.now()).unanswered
    name = control.jobs()[0].name
    ControlJob.objects.filter(name=name).update(due_at=clock.now())
    assert glance.take(clock.now()).due and control.due(clock.now()) == [name]
    held = control._claim(name, "somebody")
    assert held is not None and not glance.take(clock.now()).due
    time.advance(control.LEASE_MS)
    assert glance.take(clock.now()).due and control.due(clock.now()) == [name]
    fence = kit.worker(node=here)
    run = kit.run_of(kit.task())
    assert not glance.take(clock.now()).carried
    lease = kit.claimed(fence, run)
    assert glance.take(clock.now()).carried
    kit.advance(fence, lease)
    kit.finish(fence, lease)
    assert not glance.take(clock.now()).carried


def test_a_job_that_is_no_longer_known_keeps_nobody_awake(here: str) -> None:
    ControlJob.objects.create(name="of.another.version", due_at=clock.now())
    assert not glance.take(clock.now()).due and control.due(clock.now()) == []


def test_control_jobs_are_rung_for_on_a_node_whose_folder_is_damaged(
    here: str, tmp_path: Path, settings: Any
) -> None:
    settings.NODE_DIR = tmp_path / "damaged"
    (node.folder() / "id").write_text("no id")
    ControlJob.objects.update(due_at=clock.now())
    assert glance.take(clock.now()) == glance.Glance(due=True, unanswered=False, carried=True)
    with pytest.raises(node.NodeUnusable):
        scheduler._ring_for_orphans(clock.now())


def test_looks_of_one_moment_share_a_glance(here: str, time: Time) -> None:
    seen, called = glance.Glances(), []
    looks = [seen.when(lambda _at: True, called.append), seen.when(lambda at: at.due, called.append)]

    def look() -> None:
        for each in looks:
            each(clock.now())

    assert len(statements(look)) == 1 and len(called) == 1
    ControlJob.objects.update(due_at=clock.now())
    time.advance(1)
    assert len(statements(look)) == 1 and len(called) == 3


@pytest.mark.parametrize(("name", "most"), [(CONTROL, 1), ("runs", 4)])
def test_an_idle_pusher_asks_little(
    here: str, time: Time, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(Conf, "POLL", 0)
    monkeypatch.setattr(Doorbell, "watcher", Presence(1) if name == "runs" else None)
    bell = Doorbell(name)
    bell.dequeue()
    assert len(statements(bell.dequeue)) <= most


def test_a_node_that_is_met_beats_with_one_statement(
    here: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = Steady()
    monkeypatch.setattr("apps.dispatch.presence.time", steady)
    presence = Presence(1)
    presence.look()
    without = len(statements(presence.look))
    steady.at += BEAT_S
    skew = int(connection.vendor == "postgresql")
    assert len(statements(presence.look)) <= without + 1 + skew


def test_guards_never_ask(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They tend their parts once a second for as long as the cluster lives."""
    alive = SimpleNamespace(is_alive=lambda: True, timer=multiprocessing.Value("f", -1))
    guard: Any = cluster.Guard.__new__(cluster.Guard)
    guard.start_event = guard.stop_event = SimpleNamespace(set=lambda: None)
    guard.pool, guard.monitor, guard.pusher, guard.reincarnations = [alive], alive, alive, 0
    rounds = iter([False] * MINUTE + [True])
    monkeypatch.setattr(guard, "_wait", lambda: next(rounds))
    monkeypatch.setattr(guard, "stop", lambda: None)
    assert statements(guard.guard) == []


def test_a_control_job_costs_three_statements(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_jobs", {})
    control.register("nothing", lambda _cursor: None, 5_000)
    control.enrol(clock.now())
    found = statements(lambda: control.run_due(clock.now()))
    assert len(found) <= 1 + 3, "which are due; claimed after one look; settled"


def test_jobs_that_are_nearly_due_come_along(here: str, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they have the same pause ahead of them, and one ring for all."""
    ran: list[str] = []
    monkeypatch.setattr(control, "_jobs", {})
    for name in ("early", "late", "later"):
        control.register(name, lambda _cursor, name=name: ran.append(name), 5_000)
    control.enrol(clock.now())
    for name, after_ms in (("late", control.EARLY_MS), ("later", control.EARLY_MS + 1)):
        due_at = clock.now() + timedelta(milliseconds=after_ms)
        ControlJob.objects.filter(name=name).update(due_at=due_at)
    assert control.run_due(clock.now()) == 2 and ran == ["early", "late"]
    assert ControlJob.objects.filter(due_at=clock.now() + timedelta(seconds=5)).count() == 2
    assert control.due(clock.now()) == [], "alone, what is nearly due waits"


def test_a_ring_signs_nothing(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_q.signing.SignedPackage.dumps", lambda *_args: pytest.fail("signed"))
    scheduler._ring(CONTROL)
    assert Doorbell(CONTROL).peek() is not None


def test_nobody_walks_all_processes_while_nothing_is_to_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "descendants", lambda _roots: pytest.fail("read about every process"))
    Tree([])._kill([])


def test_libraries_are_told_that_what_nothing_uses_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "_SPARED", ("json", "this"))
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with preload._spared():
        assert find("json") is json and find("this") is None
    assert "this" not in sys.modules and find("json") is json


def find(name: str) -> object | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def test_what_is_forked_gets_memory_beyond_what_it_shares() -> None:
    """In a process of its own, which is as young as the parent of the tree.

    The heap of a process that has run other tests has more gaps than are ever filled (32 MiB).
    """
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("not glibc")
    young = [sys.executable, "-m", "tests.dispatch.gaps"]
    done = subprocess.run(young, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.one_engine
def test_a_running_script_adds_little_memory() -> None:
    """The figure of `python bench/shim.py`, with a launcher that finds its modules compiled."""
    shim.Bench().end()
    bench = shim.Bench()
    try:
        added, _ = shim.memory(bench, 16)
    except OSError:
        pytest.skip("memory of other processes is not to be read here")
    finally:
        bench.end()
    assert added <= 1.5, f"{added:.2f} MiB a script"
