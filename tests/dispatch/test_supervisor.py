"""The supervisor's rules, with small real processes; the whole tree is in tests/e2e/test_up.py."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from time import time as wall_clock

import pytest
from django.core import signing
from django.db import connection
from django_q.models import OrmQ
from django_q.signing import SignedPackage

from apps.core import clock, control, wakeups
from apps.core.doorbell import Doorbell
from apps.core.jobs import CONTROL
from apps.dispatch import drain, scheduler
from apps.dispatch.supervisor import process, tree, web
from apps.dispatch.supervisor.tree import Part, Tree
from qinglong.environment import ConfigurationError
from tests.conftest import Time
from tests.e2e.up_kit import eventually

# How long a pusher that nothing woke would sleep.
POLL_S = 30


class Served:
    """A tree in a process of its own; its parts append to a file what they do."""

    def __init__(
        self, journal: Path, parts: Callable[[Served], list[Part]], requests: int | None = None
    ) -> None:
        self.journal = journal
        journal.touch()
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                code = Tree(parts(self), requests).serve()
            finally:
                os._exit(code)

    def note(self, text: str) -> None:
        with self.journal.open("a") as file:
            file.write(f"{text} {os.getpid()} {time.monotonic()}\n")

    def notes(self, text: str) -> list[tuple[int, float]]:
        lines = [line.split() for line in self.journal.read_text().splitlines()]
        return [(int(pid), float(at)) for name, pid, at in lines if name == text]

    def end(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def sleeper(served: Served, name: str, **options: bool) -> Part:
    def run() -> int:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(served.note(f"{name}-ended") or 0))
        served.note(name)
        time.sleep(60)
        return 0

    return Part(name, run, **options)


def test_a_part_that_ends_is_started_again_ever_later(tmp_path: Path) -> None:
    def parts(served: Served) -> list[Part]:
        return [Part("short", lambda: served.note("short") or 0), sleeper(served, "long")]

    served = Served(tmp_path / "journal", parts)
    eventually(lambda: len(served.notes("short")) == 3, "three starts")
    times = [at for _pid, at in served.notes("short")]
    assert 0.4 < times[1] - times[0] < 0.9 < times[2] - times[1] < 1.6
    assert len(served.notes("long")) == 1
    assert served.end() == 0


def test_what_stayed_up_long_is_started_at_once_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "SETTLED_S", 0.0)
    served = Served(tmp_path / "journal", lambda me: [Part("short", lambda: me.note("short") or 3)])
    eventually(lambda: len(served.notes("short")) == 4, "four starts")
    times = [at for _pid, at in served.notes("short")]
    assert times[3] - times[0] < 2.5
    assert served.end() == 0


def test_the_launcher_ends_last(tmp_path: Path) -> None:
    served = Served(
        tmp_path / "journal",
        lambda me: [sleeper(me, "launcher", apart=True), sleeper(me, "web"), sleeper(me, "runs")],
    )
    eventually(lambda: all(served.notes(name) for name in ("launcher", "web", "runs")), "all there")
    assert served.end() == 0
    last = served.notes("launcher-ended")[0][1]
    assert all(served.notes(f"{name}-ended")[0][1] <= last for name in ("web", "runs"))


def test_parts_end_with_a_killed_parent_and_the_launcher_does_not(tmp_path: Path) -> None:
    served = Served(
        tmp_path / "journal", lambda me: [sleeper(me, "launcher", apart=True), sleeper(me, "web")]
    )
    eventually(lambda: served.notes("launcher") and served.notes("web"), "both there")
    os.kill(served.pid, signal.SIGKILL)
    os.waitpid(served.pid, 0)
    eventually(lambda: served.notes("web-ended"), "the end of web")
    launcher = served.notes("launcher")[0][0]
    os.kill(launcher, 0)
    os.kill(launcher, signal.SIGKILL)


def test_the_scheduler_can_have_a_part_started_anew(tmp_path: Path) -> None:
    requests, wishes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    served = Served(tmp_path / "journal", lambda me: [sleeper(me, "runs"), sleeper(me, "web")], requests)
    eventually(lambda: served.notes("runs") and served.notes("web"), "both there")
    os.write(wishes, b"runs\nnonsense\n")
    eventually(lambda: len(served.notes("runs")) == 2, "a second start")
    assert len(served.notes("web")) == 1
    assert served.end() == 0


def test_a_watched_part_that_falls_silent_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "SILENT_S", 0.6)
    monkeypatch.setattr(tree, "REPLACE_S", 0.2)
    requests, wishes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def parts(served: Served) -> list[Part]:
        def beating() -> int:
            served.note("beating")
            while True:
                os.write(wishes, b".\n")
                time.sleep(0.1)

        return [Part("scheduler", beating, watched=True), sleeper(served, "web")]

    served = Served(tmp_path / "journal", parts, requests)
    eventually(lambda: served.notes("beating"), "a start")
    time.sleep(0.9)
    assert len(served.notes("beating")) == 1
    os.kill(served.notes("beating")[0][0], signal.SIGSTOP)
    eventually(lambda: len(served.notes("beating")) == 2, "a second start")
    assert len(served.notes("web")) == 1
    assert served.end() == 0


def test_a_part_that_does_not_end_is_killed_with_all_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "DRAIN_S", 0.5)

    def parts(served: Served) -> list[Part]:
        def deaf() -> int:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.fork()
            served.note("deaf")
            time.sleep(60)
            return 0

        return [Part("deaf", deaf)]

    served = Served(tmp_path / "journal", parts)
    eventually(lambda: len(served.notes("deaf")) == 2, "both there")
    assert served.end() == 1
    for pid, _at in served.notes("deaf"):
        stat = Path(f"/proc/{pid}/stat")
        eventually(lambda stat=stat: not stat.exists() or " Z " in stat.read_text(), "its end")


def test_descendants_of_nobody() -> None:
    assert process.descendants(set()) == []


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigurationError) as refused:
            web.bind("127.0.0.1", other.getsockname()[1])
    assert refused.value.code == "port_in_use"


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        web.bind("192.0.2.1", 0)
    assert refused.value.code == "address_invalid"


def test_draining_is_heard_for_good() -> None:
    drain.prepare()
    descriptor = drain.descriptor()
    assert descriptor is not None
    with pytest.raises(BlockingIOError):
        os.eventfd_read(descriptor)
    drain.request()
    drain.request()
    assert os.eventfd_read(descriptor) == 2


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: object) -> Iterator[Doorbell]:
    settings.NODE_DIR = tmp_path / "node"  # type: ignore[attr-defined]
    monkeypatch.setattr("apps.core.doorbell.Conf.POLL", POLL_S)
    yield Doorbell(CONTROL)


@pytest.mark.django_db(transaction=True)
def test_a_message_is_taken_once_and_leaves_nothing(bell: Doorbell) -> None:
    scheduler._ring(CONTROL)
    found = bell.dequeue()
    assert found is not None and len(found) == 1 and found[0][0] is None
    assert not OrmQ.objects.exists()
    assert bell.peek() is None


@pytest.mark.django_db(transaction=True)
def test_a_message_is_never_read(bell: Doorbell) -> None:
    """Another node signs with another key, and whoever can write a row must not choose what is called."""
    foreign = signing.dumps({"func": "os.abort"}, key="another node's", salt="qinglong")
    for payload in (foreign, "not even signed"):
        OrmQ.objects.create(key=CONTROL, payload=payload, lock=clock.now())
        found = bell.dequeue()
        assert found is not None
        assert SignedPackage.loads(found[0][1])["func"] == wakeups.function_of(CONTROL)


@pytest.mark.django_db(transaction=True)
def test_rings_of_another_cluster_are_not_taken(bell: Doorbell) -> None:
    scheduler._ring("runs")
    assert bell.peek() is None


@pytest.mark.django_db(transaction=True)
def test_the_pusher_wakes_as_soon_as_it_is_rung(bell: Doorbell) -> None:
    import threading

    def ring() -> None:
        time.sleep(0.3)
        try:
            scheduler._ring(CONTROL)
        finally:
            connection.close()

    thread = threading.Thread(target=ring)
    begun = time.monotonic()
    thread.start()
    found = bell.dequeue()
    thread.join()
    assert found and time.monotonic() - begun < POLL_S


@pytest.mark.django_db(transaction=True)
def test_the_pusher_stops_at_once(bell: Doorbell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doorbell, "stop", drain.prepare())
    drain.request()
    begun = time.monotonic()
    assert bell.dequeue() is None
    assert time.monotonic() - begun < POLL_S


@pytest.mark.django_db
def test_a_lost_ring_is_rung_again_and_deafness_is_told_from_being_busy(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler._ring("runs")
    scheduler._sweep(clock.now())
    assert OrmQ.objects.count() == 1
    for _ in range(5):
        time.advance(20_000)
        scheduler._sweep(clock.now())
    assert OrmQ.objects.count() == 6
    monkeypatch.setattr("apps.core.node.held_slots", lambda: [1])
    monkeypatch.setattr("apps.core.node.silent_slots", lambda _after: {})
    assert scheduler.deaf_clusters(clock.now()) == []
    monkeypatch.setattr("apps.core.node.silent_slots", lambda _after: {1: 0.0})
    assert scheduler.deaf_clusters(clock.now()) == ["runs"]
    monkeypatch.setattr("apps.core.node.held_slots", lambda: [])
    assert scheduler.deaf_clusters(clock.now()) == ["runs"]
    wakeups.answer("runs")
    scheduler._ring("runs")
    assert scheduler.deaf_clusters(clock.now() + timedelta(seconds=5)) == []


@pytest.mark.django_db
def test_a_control_cluster_with_a_job_under_way_is_busy(time: Time) -> None:
    scheduler._ring(CONTROL)
    begun = clock.now()
    time.advance(9_000)
    assert scheduler.deaf_clusters(clock.now()) == [CONTROL]
    control.enrol(begun)
    control._claim(control.jobs()[0].name, "somebody")
    assert scheduler.deaf_clusters(clock.now()) == []
    time.advance(30_000)
    assert scheduler.deaf_clusters(clock.now()) == [CONTROL]


@pytest.mark.django_db
def test_a_silent_session_is_asked_about_once(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was started apart from the supervisor comes back by no new start of the cluster."""
    requests, wishes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    watch = scheduler._Watch(wishes)
    monkeypatch.setattr(scheduler, "PATIENCE_S", 0.0)

    def look(at: datetime) -> None:
        watch.for_deaf(at)
        watch.for_silent(at)

    for silent in ({}, {1: 5.0}, {1: 5.0}, {}, {1: 5.0}, {1: 9.0, 2: 1.0}):
        monkeypatch.setattr("apps.core.node.silent_slots", lambda _after, silent=silent: silent)
        look(clock.now())
    assert os.read(requests, 4096) == b"runs\n" * 3
    monkeypatch.setattr(scheduler, "PATIENCE_S", 15.0)
    scheduler._ring("runs")
    for _ in range(3):
        look(clock.now() + timedelta(seconds=7))
    with pytest.raises(BlockingIOError):
        os.read(requests, 4096)
    watch._asked_at["runs"] -= 15
    look(clock.now() + timedelta(seconds=7))
    assert os.read(requests, 4096) == b"runs\n", "one that is only starting is not started once more"
    asked = wall_clock() - monotonic() + watch._asked_at["runs"]
    for lived_at, again in ((asked - 0.1, False), (asked + 0.1, True)):
        monkeypatch.setattr("apps.core.node.silent_slots", lambda _after, at=lived_at: {1: at})
        look(clock.now())
        assert bool(select.select([requests], [], [], 0)[0]) == again, (
            "one that lived after we asked has started anew"
        )
    for descriptor in (requests, wishes):
        os.close(descriptor)


@pytest.mark.django_db
def test_a_failing_tick_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scheduler, "_ticks", {})
    ran = []

    def bad(_now: object) -> None:
        raise OSError("hunter2")

    scheduler.register("bad", bad, 1)
    scheduler.register("good", ran.append, 1)
    scheduler._tick(clock.now())
    assert len(ran) == 1 and "bad" in caplog.text and "hunter2" not in caplog.text


def test_a_launcher_that_does_not_end_is_killed_without_its_shims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "END_S", 0.5)

    def parts(served: Served) -> list[Part]:
        def deaf() -> int:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            served.note("shim" if os.fork() == 0 else "launcher")
            time.sleep(60)
            return 0

        return [Part("launcher", deaf, apart=True)]

    served = Served(tmp_path / "journal", parts)
    eventually(lambda: served.notes("shim") and served.notes("launcher"), "both there")
    assert served.end() == 0
    shim = served.notes("shim")[0][0]
    os.kill(shim, 0)
    os.kill(shim, signal.SIGKILL)
