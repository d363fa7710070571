"""Stopping a script and everything around its start (architecture §2, lessons D12, D15, D17)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from apps.dispatch.carried import never_started
from apps.dispatch.launcher.client import inspect, request_stop
from apps.dispatch.launcher.spec import CommandBody, ScriptBody
from tests.dispatch.shim_kit import PATH, PYTHON, Kit, alive, until


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    made.finish()


# -- stop, deadline, leftovers --------------------------------------------------------------------------

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], 'w').write(str(os.getpid()))
        while True:
            time.sleep(1)
    os._exit(0)
time.sleep(60)
"""


def test_stop_reaches_what_hides(kit: Kit) -> None:
    """Lessons D12: own session, double fork, SIGTERM ignored."""
    note = kit.home / "pid"
    live = kit.launch(CommandBody((PYTHON, "-c", STUBBORN, str(note)))).go()
    hidden = int(until(lambda: note.exists() and note.read_text()))
    assert live.shim.stop()
    assert live.end() == 137
    assert not alive(hidden)
    fact = live.fact("stop.json")
    assert fact["cause"] == "stop"
    assert fact["escaped"] == []
    assert fact["processes"] == 2
    assert fact["requested_at_ms"] <= fact["term_at_ms"] <= fact["kill_at_ms"] <= fact["ended_at_ms"]
    assert fact["run_id"] == live.spec.run_id
    assert fact["attempt_id"] == live.spec.attempt_id


LOW_FLOOD = """
import sys
sys.path.append(sys.orig_argv[-1])
from apps.dispatch.launcher.__main__ import main, shim
shim.FLOOD_PROCESSES = 6
main(["--node-dir", sys.orig_argv[-2], "--detach"])
"""


POLITE = """
import os, signal, sys, time
def leave(*_):
    os.write(1, b"bye\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        break
os.write(1, b"up\\n")
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(("children", "goodbye"), [(5, True), (6, False)])
def test_flood_is_killed_without_a_goodbye(kit: Kit, children: int, goodbye: bool) -> None:
    """The rule for 512 processes and more, with a bound of six in a launcher of its own."""
    command = [PYTHON, "-I", "-S", "-c", LOW_FLOOD, str(kit.node), str(Path(__file__).parents[2])]
    subprocess.run(command, env={}, check=True, timeout=15)
    live = kit.launch(CommandBody((PYTHON, "-c", POLITE, str(children))), grace_ms=8_000).go()
    until(lambda: live.log.count(b"up") == children + 1)
    live.shim.stop()
    live.end()
    fact = live.fact("stop.json")
    assert fact["escaped"] == []
    assert fact["processes"] == children + 1
    assert (b"bye" in live.log) is goodbye
    assert (fact["kill_at_ms"] is None) is goodbye


def test_stop_lets_a_script_say_goodbye(kit: Kit) -> None:
    live = kit.launch(
        "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done", grace_ms=8_000
    ).go()
    until(lambda: b"up" in live.log)
    live.shim.stop()
    assert live.end() == 9
    assert live.log.endswith(b"bye\n")
    assert live.fact("stop.json")["kill_at_ms"] is None


def test_stop_ends_a_spawner(kit: Kit) -> None:
    loose = f"({PYTHON} -c 'import time; time.sleep(99)' &)"
    text = f"trap '' TERM; while :; do {loose}; sleep 99 & sleep 0.01; done"
    live = kit.launch(text, env={"PATH": PATH, "HOME": f"{kit.home}/home", "MARK": str(kit.home)}).go()
    time.sleep(1.0)
    live.shim.stop()
    live.end()
    assert live.fact("stop.json")["escaped"] == []
    assert live.fact("stop.json")["processes"] > 10
    assert marked(str(kit.home)) == []


def marked(value: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            content = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"MARK={value}\0".encode() in content and alive(int(pid)):
            found.append(int(pid))
    return found


@pytest.mark.parametrize("changes", [{"timeout_ms": 300}, {"deadline_at_ms": 300}])
@pytest.mark.parametrize("phase", ["before", "body", "after"])
def test_deadline_covers_every_phase(kit: Kit, changes: dict[str, int], phase: str) -> None:
    kit.launcher.connect()  # its own start is not part of the run
    if "deadline_at_ms" in changes:
        changes = {"deadline_at_ms": time.time_ns() // 1_000_000 + 600}
    texts = {"before": "true", "after": "true", "body": "exit 0", phase: "sleep 30"}
    body = texts.pop("body")
    live = kit.launch(body, **texts, **changes).go()
    assert live.end() == {"before": 143, "body": 143, "after": 0}[phase]
    assert live.fact("stop.json")["cause"] == "deadline"


@pytest.mark.parametrize("phase", ["before", "body", "after"])
def test_stop_works_in_every_phase(kit: Kit, phase: str) -> None:
    texts = {"before": "true", "after": "true", "body": "true", phase: "echo in; sleep 30"}
    body = texts.pop("body")
    live = kit.launch(body, **texts).go()
    until(lambda: b"in" in live.log)
    live.shim.stop()
    live.end()
    assert live.fact("stop.json")["cause"] == "stop"


def test_no_after_behind_a_stop(kit: Kit) -> None:
    live = kit.launch("echo in; sleep 30", after="echo after").go()
    until(lambda: b"in" in live.log)
    live.shim.stop()
    live.end()
    assert live.log == b"in\n"


def test_nothing_is_left_behind(kit: Kit) -> None:
    live = kit.run("setsid sleep 60 & echo $!; exit 3")
    assert live.receipt().exit_code == 3
    assert not alive(int(live.log))
    assert live.fact("stop.json")["cause"] == "leftover"


def test_chatty_daemon_does_not_hold_the_run(kit: Kit) -> None:
    # The daemon writes until somebody ends it: the receipt would never come.
    live = kit.run("trap '' TERM; yes & exit 2")
    assert live.receipt().exit_code == 2


def test_orphans_are_collected(kit: Kit) -> None:
    live = kit.launch(
        "i=0; while [ $i -lt 20 ]; do (sleep 0.01 &) ; i=$((i+1)); done; echo made; sleep 30"
    ).go()
    pid = live.wait("ready").pid
    until(lambda: b"made" in live.log)
    time.sleep(0.3)
    states = [
        line.rpartition(")")[2].split()[:2]
        for line in (read_quietly(f"/proc/{entry}/stat") for entry in os.listdir("/proc") if entry.isdigit())
        if line
    ]
    assert [state for state, parent in states if parent == str(pid) and state == "Z"] == []
    live.shim.stop()
    live.end()


def read_quietly(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def test_stop_without_the_socket(kit: Kit) -> None:
    live = kit.launch("sleep 60").go()
    handle = live.wait("ready").handle
    live.wait("started")
    live.shim.close()
    assert inspect(handle) == "running"
    assert request_stop(replace(handle, start_ticks=handle.start_ticks + 1)) == "identity_mismatch"
    assert request_stop(handle) == "termination_requested"
    assert live.end() == 143
    until(lambda: request_stop(handle) == "already_exited")
    assert inspect(handle) == "exited"


# -- before go, and around it ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "stop", "sigterm"])
def test_never_started_leaves_nothing(kit: Kit, how: str) -> None:
    """But a word that nothing has run, where nobody had said that it shall not."""
    live = kit.launch(ScriptBody((("sh",),), "main.sh", "touch ran"))
    pid = live.wait("ready").pid
    assert live.traces()
    if how == "close":
        live.shim.close()
    elif how == "stop":
        live.shim.stop()
    else:
        os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    assert live.traces() == ([live.spec.attempt_dir] if how == "close" else [])
    assert never_started(Path(live.spec.attempt_dir)) == (how == "close")
    assert not Path(live.spec.cwd, "ran").exists()
    if how != "close":
        assert live.wait("failed").code == "stopped"


def test_stop_right_behind_go_leaves_a_receipt(kit: Kit) -> None:
    live = kit.launch("touch ran", after="touch ran")
    pid = live.wait("ready").pid
    os.kill(pid, signal.SIGSTOP)
    live.shim.go()
    live.shim.stop()
    live.shim.close()
    os.kill(pid, signal.SIGCONT)
    assert live.end() == 143
    assert live.fact("stop.json")["cause"] == "stop"
    assert not Path(live.spec.cwd, "ran").exists()


def test_go_of_a_session_that_died_without_reading(kit: Kit) -> None:
    live = kit.launch("exit 3")
    until(lambda: live.traces())
    time.sleep(0.2)  # `ready` waits unread: the shim will see a reset before it sees the `go`
    live.shim.go()
    live.shim.close()
    assert live.receipt().exit_code == 3


def test_same_attempt_never_runs_twice(kit: Kit) -> None:
    first = kit.launch("echo once; sleep 30").go()
    until(lambda: first.log)
    second = kit.launcher.launch(first.spec)
    assert until(second.receive)[0].code == "attempt_active"
    first.shim.stop()
    first.end()
    third = kit.launcher.launch(first.spec)
    assert until(third.receive)[0].code == "attempt_started"
    assert first.log == b"once\n"


def test_attempt_of_a_shim_killed_before_go_can_start(kit: Kit) -> None:
    first = kit.launch(ScriptBody((("sh",),), "main.sh", "echo fine"))
    pid = first.wait("ready").pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    second = kit.launcher.launch(first.spec)
    assert until(second.receive)[0].state == "ready"
    second.go()
    assert first.receipt().exit_code == 0
    assert first.log == b"fine\n"


def test_a_shim_that_comes_when_all_is_over_leaves_nothing(kit: Kit) -> None:
    """Another one may have run the attempt meanwhile, and its folder is gone: nobody would look for a new one."""
    kit.run("true")
    launcher = kit.launcher_pid()
    os.kill(launcher, signal.SIGSTOP)
    late = kit.launch("touch ran")
    late.shim.close()
    os.kill(launcher, signal.SIGCONT)
    kit.run("true")  # asked for later, so that the launcher has forked the first
    kit.launcher.close()
    until(lambda: kit.processes() == [launcher], "the end of the shims")
    assert late.traces() == [] and not Path(late.spec.cwd, "ran").exists()


def test_unsafe_places_are_refused(kit: Kit) -> None:
    live = kit.launch("true")
    live.wait("ready")
    live.shim.close()
    until(lambda: live.traces() == [live.spec.attempt_dir])
    os.symlink("/etc/passwd", live.paths.log)
    again = kit.launcher.launch(live.spec)
    assert until(again.receive)[0].state == "failed"
    assert not Path(live.spec.attempt_dir).exists()


def test_receipt_folder_that_vanished_is_made_again(kit: Kit) -> None:
    live = kit.launch(f"rm -rf '{kit.home}/receipts'; exit 8").go()
    assert live.receipt().exit_code == 8


def test_script_that_removes_its_own_folder_still_ends(kit: Kit) -> None:
    live = kit.launch('rm -rf "$TMPDIR"; exit 8').go()
    assert live.receipt().exit_code == 8
