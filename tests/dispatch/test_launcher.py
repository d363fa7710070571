"""The launcher and its client: one per node, many requests, hard deaths on every side."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.dispatch.carried import never_started
from apps.dispatch.launcher import client
from apps.dispatch.launcher.client import Handle, Launcher, LauncherUnavailable, inspect, open_pidfd
from apps.dispatch.launcher.spec import CommandBody, ScriptBody
from tests.dispatch.shim_kit import Kit, alive, until

PROGRAM = Path(client.__file__).with_name("__main__.py")


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    made.finish()


def test_started_on_demand_with_an_empty_environment(kit: Kit) -> None:
    kit.launcher.connect()
    pid = kit.launcher_pid()
    if os.geteuid() == 0:  # to everybody else launcher and shims are closed
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    assert os.getsid(pid) != os.getsid(0)
    assert stat.S_IMODE((kit.node / "launcher.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE(kit.node.stat().st_mode) == 0o700
    assert len(os.listdir(f"/proc/{pid}/task")) == 1


def test_loads_neither_django_nor_packages() -> None:
    code = (
        "import sys\n"
        "sys.path.append(sys.orig_argv[-1])\n"
        "import apps.dispatch.launcher.__main__\n"
        "bad = {'django', 'site', 'threading', 'subprocess', 'hashlib', 'pathlib', 'typing', 'inspect'}\n"
        "bad &= set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    root = PROGRAM.parents[3]
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(root)], env={}, capture_output=True)
    assert ended.returncode == 0, ended.stderr


REHEARSAL = """
import os, sys
sys.path.append(sys.orig_argv[-2])
from apps.dispatch.launcher import records
records.install()
from apps.dispatch.launcher import control, rehearsal
told, home = [], os.getcwd()
control.Channel.send = lambda channel, *words: told.append(words[0])
if sys.orig_argv[-1] == "disk":
    rehearsal._MEMORY = "/nowhere"
rehearsal.rehearse(home)
# On a slow machine a program that does nothing may still be there when its start is to be told.
assert [word for word in told if word != "started"] == ["ended"] * rehearsal.ROUNDS, told
assert os.listdir(home) == []
"""


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_rehearsal_gets_through_and_leaves_nothing(tmp_path: Path, place: str) -> None:
    """It is allowed to fail, so nothing else would show that it does."""
    command = [sys.executable, "-I", "-S", "-c", REHEARSAL, str(PROGRAM.parents[3]), place]
    ended = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, timeout=30)
    assert ended.returncode == 0, ended.stderr.decode()


def test_second_launcher_is_refused(kit: Kit) -> None:
    kit.launcher.connect()
    command = [sys.executable, "-I", "-S", str(PROGRAM), "--node-dir", str(kit.node)]
    for extra in ([], ["--detach"]):
        ended = subprocess.run([*command, *extra], env={}, capture_output=True, timeout=10)
        assert ended.returncode == 3
        assert ended.stderr == b"launcher: another launcher serves this node folder\n"


def test_unusable_folder_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "START_TIMEOUT_S", 0.5)
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "launcher.lock").symlink_to("/etc/passwd")
    with pytest.raises(LauncherUnavailable, match="cannot be used"):
        Launcher(tmp_path / "node").connect()


def test_long_home(tmp_path: Path) -> None:
    kit = Kit(tmp_path / ("a" * 120) / ("b" * 120))
    try:
        assert kit.run("exit 3").receipt().exit_code == 3
    finally:
        kit.finish()


def test_many_clients_start_one_launcher(kit: Kit) -> None:
    launchers = [Launcher(kit.node) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda launcher: launcher.connect(), launchers))
    assert len(kit.processes()) == 1
    for launcher in launchers:
        launcher.close()


def test_nonsense_closes_one_connection_only(kit: Kit) -> None:
    kit.launcher.connect()
    # The folder's own path may be longer than a socket name can be.
    folder = os.open(kit.node, os.O_PATH)
    address = f"/proc/self/fd/{folder}/launcher.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bad:
        bad.connect(address)
        bad.settimeout(5)
        bad.send(b"hello")
        assert bad.recv(10) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bad:
        bad.connect(address)
        os.close(folder)
        bad.settimeout(5)
        read, write = os.pipe()
        socket.send_fds(bad, [b"fork"], [read, read, write])
        os.close(read)
        os.close(write)
        assert bad.recv(10) == b""
    assert kit.run("exit 0").receipt().exit_code == 0
    if os.geteuid() == 0:
        until(lambda: len(os.listdir(f"/proc/{kit.launcher_pid()}/fd")) <= 9)


def test_bad_specification_is_told(kit: Kit) -> None:
    kit.launcher.connect()
    memory = os.memfd_create("x")
    os.write(memory, b"{}")
    for first, file, code in (
        (b"{}", None, "invalid_spec"),
        (b"", memory, "invalid_spec"),
        (b"", None, "io_error"),
    ):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if first:
            ours.send(first)
        kit.launcher._request(theirs.fileno(), file)
        theirs.close()
        shim = client.Shim(ours)
        message = until(shim.receive)[0]
        assert (message.state, message.code) == ("failed", code)
        shim.close()
    os.close(memory)


@pytest.mark.parametrize("size", [60_000, 70_000])
def test_both_ways_of_a_specification(kit: Kit, size: int) -> None:
    """Short ones come over the control socket, long ones in a memory file."""
    live = kit.run(f"exit 3 # {'x' * size}")
    assert live.receipt().exit_code == 3


def test_a_machine_with_small_socket_buffers(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_send_spec", lambda *_: False)
    assert kit.run("exit 3").receipt().exit_code == 3


def test_sixteen_at_once(kit: Kit) -> None:
    lives = [kit.launch(f"sleep 0.2; exit {n}") for n in range(16)]
    for live in lives:
        live.go()
    assert [live.end() for live in lives] == list(range(16))


def test_scripts_outlive_a_killed_launcher(kit: Kit) -> None:
    live = kit.launch("sleep 1; echo done; exit 4").go()
    live.wait("started")
    waiting = kit.launch("echo second; exit 5")
    waiting.wait("ready")
    old = kit.launcher_pid()
    os.kill(old, signal.SIGKILL)
    until(lambda: not alive(old))
    fresh = kit.launch("exit 6").go()  # the client finds the connection broken and starts a new one
    assert kit.launcher_pid() != old
    waiting.go()
    assert fresh.end() == 6
    assert waiting.end() == 5
    assert live.end() == 4
    assert live.log == b"done\n"


def test_sigterm_ends_the_launcher_and_not_the_scripts(kit: Kit) -> None:
    live = kit.launch("sleep 0.7; exit 4").go()
    live.wait("started")
    pid = kit.launcher_pid()
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    assert not (kit.node / "launcher.sock").exists()
    assert live.end() == 4


SESSION = """
import os, select, sys, time
sys.path.insert(0, {root!r})
from tests.dispatch.shim_kit import Kit
from pathlib import Path
kit = Kit(Path({home!r}))
live = kit.launch("echo ran; sleep 0.5; exit 11")
stage = sys.argv[1]
print(live.spec.attempt_id, flush=True)
if stage != "launch":
    live.wait("ready")
if stage in ("go", "started"):
    live.shim.go()
if stage == "started":
    live.wait("started")
print("here", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stage", ["launch", "ready", "go", "started"])
def test_killed_session(kit: Kit, stage: str) -> None:
    """Before `go` nothing has run, and the folder says so; after it the end becomes known."""
    kit.launcher.connect()
    code = SESSION.format(root=str(PROGRAM.parents[3]), home=str(kit.home))
    session = subprocess.Popen([sys.executable, "-c", code, stage], stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    attempt = session.stdout.readline().strip()
    assert session.stdout.readline() == "here\n"
    session.kill()
    session.wait()
    session.stdout.close()
    receipts = kit.home / "receipts"
    if stage in ("go", "started"):
        path = receipts / attempt[-2:] / f"{attempt}.json"
        until(path.exists)
        assert b'"exit_code":11' in path.read_bytes()
    else:
        # Requests are taken in turn: when this run is over, the killed session's request has been taken too.
        other = kit.run("true")
        until(lambda: len(kit.processes()) == 1)
        assert [path.stem for path in receipts.rglob("*.json")] == [other.spec.attempt_id]
        assert not list(receipts.rglob("*.tmp"))
        folder = kit.home / "attempts" / attempt
        # A shim whose session was gone before it had said `ready` takes everything back, the folder too.
        gone = stage == "launch" and not folder.exists()
        assert gone or (never_started(folder) and not list(folder.iterdir()))
        assert [str(path) for path in (kit.home / "logs").rglob("*.log")] == [other.paths.log]


def test_session_that_never_reads_disturbs_nothing(kit: Kit) -> None:
    live = kit.launch("exit 2")
    time.sleep(0.1)
    live.shim.go()
    assert live.receipt().exit_code == 2


def test_handles() -> None:
    own = client.read_stat(os.getpid())
    assert own is not None
    handle = Handle(os.getpid(), own.start_ticks, client.boot_id())
    assert Handle.decode(handle.encode()) == handle
    assert inspect(handle) == "running"
    descriptor = open_pidfd(handle)
    assert descriptor is not None
    os.close(descriptor)
    assert inspect(Handle(handle.pid, 1, handle.boot_id)) == "identity_mismatch"
    assert open_pidfd(Handle(handle.pid, 1, handle.boot_id)) is None
    assert inspect(Handle(handle.pid, own.start_ticks, "another boot")) == "exited"
    assert inspect(Handle(0, 1, handle.boot_id)) == "invalid"
    for text in ("", "{}", "[]", '{"boot_id":"x","pid":true,"start_ticks":1}', handle.encode() + " " * 2048):
        with pytest.raises(ValueError):
            Handle.decode(text)


def test_no_descriptors_leak_in_the_session(kit: Kit) -> None:
    kit.run(CommandBody(("true",))).shim.close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        kit.run(CommandBody(("true",))).shim.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_largest_source_that_may_be_saved_can_start(kit: Kit) -> None:
    """1 MiB of control characters is written six times as long, Chinese text twice."""
    for character in ("\x01", "青"):
        source = ": " + character * (1_048_576 // len(character.encode()) - 2)
        live = kit.launch(ScriptBody((("sh",),), "main.sh", source)).go()
        assert live.end() == 0
