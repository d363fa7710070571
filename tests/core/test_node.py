"""Node identity and its locks, with real processes where it matters."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apps.core import node


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, settings) -> None:
    settings.NODE_DIR = tmp_path / "node"


def test_the_id_is_made_once_and_private() -> None:
    first = node.node_id()
    assert node.node_id() == first
    assert len(first) == 32
    path = node.folder() / "id"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_damaged_id_is_refused_and_not_replaced() -> None:
    path = node.folder() / "id"
    path.write_text("someone else")
    with pytest.raises(node.NodeUnusable):
        node.node_id()
    assert path.read_text() == "someone else"


def test_an_id_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("0" * 32)
    (node.folder() / "id").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(node.NodeUnusable):
        node.node_id()


def test_wide_folders_are_narrowed() -> None:
    node.folder("workers").chmod(0o755)
    assert stat.S_IMODE(node.folder("workers").stat().st_mode) == 0o700


def test_the_lowest_free_slot_is_taken() -> None:
    first, second = node.claim_slot(), node.claim_slot()
    assert (first.number, second.number) == (1, 2)
    assert node.slot_held(1) and node.held_slots() == [1, 2]
    first.release()
    assert not node.slot_held(1)
    again = node.claim_slot()
    assert again.number == 1
    again.release()
    second.release()
    assert node.held_slots() == []


def test_who_shows_no_life_is_silent() -> None:
    held = node.claim_slot()
    file = node.folder("workers") / "1.lock"
    os.utime(file, (0, 5.0))
    assert node.silent_slots(10) == {1: 5.0}
    held.show_life()
    assert node.silent_slots(10) == {}
    os.utime(file, (0, 5.0))
    held.release()
    assert node.silent_slots(10) == {}


def test_slots_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "SLOTS_MAX", 1)
    held = node.claim_slot()
    with pytest.raises(node.NoFreeSlot):
        node.claim_slot()
    held.release()


def test_a_slot_is_free_as_soon_as_its_holder_was_killed() -> None:
    child = os.fork()
    if child == 0:
        node.claim_slot()
        time.sleep(60)
        os._exit(0)
    while not node.slot_held(1):
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert not node.slot_held(1)


def test_a_second_up_is_refused_at_once() -> None:
    held = node.up_lock()
    begun = time.monotonic()
    with pytest.raises(node.AlreadyRunning):
        node.up_lock(wait_s=60)
    assert time.monotonic() - begun < 30
    held.release()
    node.up_lock().release()


def test_the_children_of_a_killed_up_are_waited_for() -> None:
    parent = os.fork()
    if parent == 0:
        node.up_lock()
        if os.fork() == 0:
            time.sleep(0.8)
            os._exit(0)
        (node.folder() / "ready").touch()
        time.sleep(60)
    while not (node.folder() / "ready").exists():
        time.sleep(0.01)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    with pytest.raises(node.AlreadyRunning):
        node.up_lock(wait_s=0.1)
    node.up_lock(wait_s=5).release()


def test_processes_are_told_apart_by_their_start() -> None:
    me = node.Process.current()
    assert me.is_alive()
    assert not node.Process(me.pid, me.started + 1, me.boot).is_alive()
    assert not node.Process(me.pid, me.started, "another boot").is_alive()


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    started = node._start_ticks(child.pid)
    while node._start_ticks(child.pid) is not None:
        time.sleep(0.01)
    assert not node.Process(child.pid, started or 0, node._boot_id()).is_alive()
    child.wait()
