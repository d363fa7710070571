"""What a dispatch session uses: start scripts, hear from their shims, find and stop them again later.

Threads may share a `Launcher` only with their own lock; a `Shim` belongs to whoever launched it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from apps.dispatch.launcher.control import GO, SPEC_BYTES_MAX, receive_all
from apps.dispatch.launcher.spec import LaunchSpec
from apps.dispatch.launcher.tree import boot_id, read_stat

HANDLE_BYTES_MAX = 2048
START_TIMEOUT_S = 5.0
_ANOTHER_RUNS = 3
_PROGRAM = Path(__file__).with_name("__main__.py")


class LauncherUnavailable(Exception):
    """No launcher answers and none could be started; `str()` says why, for an operator."""

    code = "launcher_unavailable"


@dataclass(frozen=True, slots=True)
class Handle:
    """Identity of a shim that survives everything but a reboot: pid, start in clock ticks, boot."""

    pid: int
    start_ticks: int
    boot_id: str

    def encode(self) -> str:
        """JSON of at most 2,048 bytes."""
        return _encode(self)

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Strict inverse of `encode`; ValueError for anything else."""
        if len(text.encode("utf-8", "replace")) > HANDLE_BYTES_MAX:
            raise ValueError("handle is too long")
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError("handle is not JSON") from None
        if not isinstance(value, dict) or set(value) != {"boot_id", "pid", "start_ticks"}:
            raise ValueError("handle has wrong keys")
        handle = cls(value["pid"], value["start_ticks"], value["boot_id"])
        if not handle._valid():
            raise ValueError("handle has wrong values")
        return handle

    def _valid(self) -> bool:
        numbers = type(self.pid) is int and type(self.start_ticks) is int
        return (
            numbers
            and 1 < self.pid < 2**31
            and 0 < self.start_ticks < 2**63
            and isinstance(self.boot_id, str)
            and 1 <= len(self.boot_id) <= 64
        )


@lru_cache(maxsize=256)
def _encode(handle: Handle) -> str:
    """Kept: a warm shim has one handle for all its runs."""
    return json.dumps(
        {"boot_id": handle.boot_id, "pid": handle.pid, "start_ticks": handle.start_ticks},
        separators=(",", ":"),
        sort_keys=True,
    )


@dataclass(frozen=True, slots=True)
class Message:
    """News of a shim. `state`: ready, failed, started, ended; the other fields as that state has them."""

    state: str
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    started_at_ms: int = 0
    code: str = ""
    detail: str = ""
    warm: bool = False

    @classmethod
    def decode(cls, data: bytes) -> Message:
        """Read what a shim sent (control.py). ValueError for anything else."""
        state, *values = data.decode().split(" ", 3)
        if state == "ready":
            pid, ticks, boot = values
            return cls(state, int(pid), int(ticks), boot)
        if state == "started":
            pid, at_ms = values
            return cls(state, int(pid), started_at_ms=int(at_ms))
        if state == "failed":
            return cls(state, code=values[0], detail=" ".join(values[1:]))
        if data not in (b"ended", b"ended warm"):
            raise ValueError("not a message of a shim")
        return cls(state, warm=bool(values))

    @property
    def handle(self) -> Handle:
        """Of the shim; only in state ready."""
        return Handle(self.pid, self.start_ticks, self.boot_id)


class Shim:
    """A session's end of one shim's control socket."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self.socket = control
        self.closed = False
        self.used = False
        self.handle: Handle | None = None

    def fileno(self) -> int:
        return self.socket.fileno()

    def receive(self) -> list[Message]:
        """What waits, without blocking. `closed` turns true at the end of the stream or any error:
        before `go` that means never started, after it only the receipt can tell."""
        if self.closed:
            return []
        found, self.closed = receive_all(self.socket.fileno())
        messages = [Message.decode(data) for data in found]
        for message in messages:
            if message.state == "ready":
                self.handle = message.handle
        return messages

    def go(self) -> bool:
        """Let it start. False: the shim is gone, and nothing was started."""
        return self._send(GO)

    def stop(self, cause: str = "") -> bool:
        """Ask for a stop of the whole tree; `cause` "deadline" is noted as such. False: the shim is gone."""
        return self._send(f"stop:{cause}".encode() if cause else b"stop")

    def again(self, data: bytes, *, go: bool = False) -> bool:
        """Hand a warm shim another specification, and let it start at once where `go` is set.

        False: it is gone, or the specification is too long, and nothing was started.
        """
        self.used = True
        return _send_spec(self.socket, data, GO if go else b"")

    def close(self) -> None:
        """Let go of it. Before `go` the shim takes everything back, after it the shim carries on."""
        self.closed = True
        self.socket.close()

    def _send(self, data: bytes) -> bool:
        try:
            return self.socket.send(data, socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            return False


class Launcher:
    """The node's launcher, found or started on demand."""

    def __init__(self, node_dir: str | Path, *, python: str | None = None) -> None:
        """`python` is the interpreter for a launcher that must be started (default: this one's)."""
        self._node = Path(node_dir).absolute()
        self._python = python or sys.executable
        self._connection: socket.socket | None = None
        self._warm: list[Shim] = []
        self._unused = 0

    def connect(self) -> None:
        """Make sure a launcher answers, starting one if need be. LauncherUnavailable after about 5 s."""
        if self._connection is None:
            self._connection = self._try_connect() or self._start()

    def launch(self, spec: LaunchSpec) -> Shim:
        """Ask for a shim and return at once; its first message is `ready` or `failed`.

        A warm one is taken where one is kept; should it have died since, its socket ends before `ready` and
        `used` tells that a fresh one may be asked for. SpecError for a specification that is too large; all else
        in it is for the shim to judge.
        LauncherUnavailable when a second, fresh launcher could not be reached either. Nothing has been
        started in either case.
        """
        data = spec.encode()
        while (shim := self.take_warm()) is not None:
            if shim.again(data):
                return shim
            shim.close()
        memory = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if not _send_spec(ours, data):
                memory = _seal(data)
            self._request(theirs.fileno(), memory)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if memory is not None:
                os.close(memory)
        return Shim(ours)

    def take_warm(self) -> Shim | None:
        """A kept shim that lives, for `again`; None where there is none."""
        while self._warm:
            shim = self._warm.pop()
            self._unused = min(self._unused, len(self._warm))
            if not shim.receive() and not shim.closed:
                return shim
            shim.close()
        return None

    def keep(self, shim: Shim) -> None:
        """Take a shim whose last message was `ended warm`, once nothing needs its run's handle any more."""
        self._warm.append(shim)

    def trim(self) -> None:
        """Let those end that were not needed since the last call."""
        for shim in self._warm[: self._unused]:
            shim.close()
        del self._warm[: self._unused]
        self._unused = len(self._warm)

    def close(self) -> None:
        """Let go of the connection and of warm shims; launcher and running shims carry on."""
        for shim in self._warm:
            shim.close()
        self._warm.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, control: int, memory: int | None = None) -> None:
        descriptors = [control] if memory is None else [control, memory]
        for last in (False, True):
            self.connect()
            assert self._connection is not None
            try:
                socket.send_fds(self._connection, [b"fork"], descriptors, socket.MSG_NOSIGNAL)
                return
            except OSError as error:
                self.close()
                if last:
                    raise LauncherUnavailable("the launcher does not take requests") from error

    def _try_connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            folder = os.open(self._node, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.settimeout(START_TIMEOUT_S)
                # Through the descriptor: the folder's own path may be longer than a socket name can be.
                connection.connect(f"/proc/self/fd/{folder}/launcher.sock")
            finally:
                os.close(folder)
        except OSError:
            connection.close()
            return None
        return connection

    def _start(self) -> socket.socket:
        """Start a launcher, alone: whoever else wants one waits here and finds ours."""
        self._node.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._node / "launcher.start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            deadline = time.monotonic() + START_TIMEOUT_S
            reason = "it does not answer"
            while time.monotonic() < deadline:
                if (connection := self._try_connect()) is not None:
                    return connection
                reason = self._spawn() or reason
                time.sleep(0.01)
            raise LauncherUnavailable(f"no launcher for this node: {reason}")
        finally:
            os.close(lock)

    def _spawn(self) -> str:
        """One attempt; an empty text when it listens or another one holds the node."""
        command = [self._python, "-I", "-S", str(_PROGRAM), "--node-dir", str(self._node), "--detach"]
        try:
            ended = subprocess.run(  # noqa: S603  - a fixed program, no shell
                command,
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=START_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return type(error).__name__
        if ended.returncode in (0, _ANOTHER_RUNS):
            return ""
        return ended.stderr.decode("utf-8", "replace").strip()[-300:] or f"exit code {ended.returncode}"


def _send_spec(control: socket.socket, data: bytes, before: bytes = b"") -> bool:
    """False when it is too long for a datagram, here or by the machine's settings."""
    if len(data) > SPEC_BYTES_MAX:
        return False
    try:
        return control.send(before + data, socket.MSG_DONTWAIT) == len(before) + len(data)
    except OSError:
        return False


def _seal(data: bytes) -> int:
    """A memory file with this content that nobody can change any more, to be closed by the caller."""
    memory = os.memfd_create("launch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        written = 0
        while written < len(data):
            written += os.write(memory, data[written:])
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(memory)
        raise
    return memory


def inspect(handle: Handle) -> str:
    """`running`, `exited`, `identity_mismatch` (the pid is somebody else's now) or `invalid`.

    A handle of an earlier boot is `exited`: nothing survives a reboot.
    """
    if not handle._valid():
        return "invalid"
    if handle.boot_id != boot_id():
        return "exited"
    found = read_stat(handle.pid)
    if found is None:
        return "exited"
    if found.start_ticks != handle.start_ticks:
        return "identity_mismatch"
    return "exited" if found.state in "ZX" else "running"


def wait_until_gone(handle: Handle, at_most_s: float) -> bool:
    """Whether nothing of it is left, its locks included; waits for one that is just ending."""
    descriptor = open_pidfd(handle)
    if descriptor is None:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(at_most_s * 1000))
    finally:
        os.close(descriptor)


def open_pidfd(handle: Handle) -> int | None:
    """A pidfd of exactly this process, to be closed by the caller; None unless it is running."""
    if not handle._valid():
        return None
    try:
        descriptor = os.pidfd_open(handle.pid)
    except OSError:
        return None
    # Checked after opening: from here on the descriptor cannot come to mean another process.
    if inspect(handle) != "running":
        os.close(descriptor)
        return None
    return descriptor


def request_stop(handle: Handle) -> str:
    """Ask a shim without its socket to stop its tree (spec/runs.md §7.2).

    `termination_requested`, `already_exited`, `identity_mismatch` or `invalid`.
    """
    if _signal(handle, signal.SIGTERM, signal.SIGCONT):
        return "termination_requested"
    state = inspect(handle)
    return state if state in ("identity_mismatch", "invalid") else "already_exited"


def wake(handle: Handle) -> None:
    """Let a shim that somebody froze go on, so that it reads what it was sent; nothing to one that runs."""
    _signal(handle, signal.SIGCONT)


def _signal(handle: Handle, *numbers: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone. OSError where that is not allowed."""
    descriptor = open_pidfd(handle)
    if descriptor is None:
        return False
    try:
        for number in numbers:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
