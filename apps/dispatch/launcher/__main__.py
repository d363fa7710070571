"""The launcher: one small process per node that forks a shim for each script (architecture §2).

    python -I -S <path>/apps/dispatch/launcher/__main__.py --node-dir DIR [--detach]

It holds no secret, no thread, no database; specifications go unread to the shims. With `--detach` the
command returns 0 as soon as the launcher listens. Exit codes: 2 usage, 3 another launcher is there,
4 the node folder cannot be used.
"""
# Why not pathlib: every shim inherits what is imported here; pathlib would cost each of them.
# ruff: noqa: PTH100, PTH101, PTH103, PTH104, PTH108, PTH120, E402

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import stat
import sys
from contextlib import suppress

_HERE = os.path.dirname(os.path.abspath(__file__))
# At the end of the path, so that nothing beside `apps` can stand in for a standard module.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]

from apps.dispatch.launcher import records

records.install()  # before anything below loads the real `dataclasses`

from apps.dispatch import heap
from apps.dispatch.launcher import files, homes, programs, rehearsal, shim, tree
from apps.dispatch.launcher.control import Channel
from apps.dispatch.launcher.loop import Loop
from apps.dispatch.launcher.signals import BLOCK, SET, SIGINT, SIGTERM, UNBLOCK, set_mask

SOCKET_NAME = "launcher.sock"
LOCK_NAME = "launcher.lock"
EMPTY_INPUT_NAME = "empty-input.json"
ANOTHER_RUNS = 3
UNUSABLE = 4
BACKLOG = 64
_MESSAGE_MAX = 64
_DESCRIPTORS = 2
_ANCILLARY_MAX = socket.CMSG_SPACE(_DESCRIPTORS * 4)
# Plain numbers: what an enumeration does for an `|` would be done after every fork anew.
_CLOSED_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_CUT = int(socket.MSG_CTRUNC | socket.MSG_TRUNC)
_DESCRIPTORS_MAX = 1_048_576


class Launcher:
    """Accepts connections and turns each request into a shim."""

    def __init__(self, listener: socket.socket, boot: str, empty_input: str) -> None:
        self._listener = listener
        self._boot = boot
        self._empty_input = empty_input
        self._clients: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._poll.register(self._wake_read, select.POLLIN)
        self._ending = False

    def end(self, *_: object) -> None:
        self._ending = True

    def serve(self) -> None:
        """Until SIGTERM or SIGINT; shims live on."""
        while not self._ending:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._clients:
                    self._read(descriptor)

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._clients[client.fileno()] = client
            self._poll.register(client, select.POLLIN)

    def _read(self, descriptor: int) -> None:
        """One request; the poll comes back at once when more wait, and no client waits behind another's."""
        client = self._clients[descriptor]
        try:
            message, received = _receive(client)
        except BlockingIOError:
            return
        except OSError:
            message, received = b"", []
        try:
            good = message == b"fork" and 1 <= len(received) <= _DESCRIPTORS and self._fork(*received)
        finally:
            for passed in received:
                os.close(passed)
        if not good:
            # End of file, nonsense, or no process to be had: the other side sees it at once.
            self._poll.unregister(descriptor)
            del self._clients[descriptor]
            client.close()

    def _fork(self, control: int, memory: int | None = None) -> bool:
        try:
            # A signal between fork and the shim's own handlers would meet ours: it waits instead.
            set_mask(BLOCK, _HANDLED)
            pid = os.fork()
        except OSError:
            set_mask(UNBLOCK, _HANDLED)
            return False
        if pid == 0:
            _become_shim(control, memory, self._boot, self._empty_input)
        set_mask(UNBLOCK, _HANDLED)
        return True


_HANDLED = (SIGTERM, SIGINT)


def _become_shim(control: int, memory: int | None, boot: str, empty_input: str) -> None:
    """Never returns: whatever happens, the child does not fall back into the launcher's loop."""
    try:
        first = 3
        for kept in (control,) if memory is None else sorted((control, memory)):
            os.closerange(first, kept)
            first = kept + 1
        os.closerange(first, _DESCRIPTORS_MAX)
        os.setsid()
        channel = Channel(control)
        loop = Loop(channel)
        set_mask(SET, ())
        tree.become_subreaper()
        tree.become_batch()
        shim.serve(channel, loop, memory, boot, empty_input)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _receive(client: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptors that came with it, closed on exec."""
    message, ancillary, flags, _ = client.recvmsg(_MESSAGE_MAX, _ANCILLARY_MAX, _CLOSED_ON_EXEC)
    received: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received += memoryview(data[: len(data) // 4 * 4]).cast("i").tolist()
    if flags & _CUT:
        message = b""
    return message, received


def _listen(node: str) -> socket.socket:
    """Take the lock and the socket of a node folder; exits with a clear line when that cannot be."""
    try:
        os.makedirs(node, 0o700, exist_ok=True)
        # The name of a socket is at most 108 bytes; from inside its folder it is always short.
        os.chdir(node)
        if stat.S_IMODE(os.lstat(".").st_mode) != homes.GATE:
            os.chmod(".", 0o700)
        lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _fail("another launcher serves this node folder", ANOTHER_RUNS)
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())  # for people; the lock itself is what counts
        with suppress(FileNotFoundError):
            os.unlink(SOCKET_NAME)
        _make_empty_input()
        files.remove_spares("attempts")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.umask(0o177)
        listener.bind(SOCKET_NAME)
        os.umask(0o022)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        _fail(f"the node folder cannot be used: {os.strerror(error.errno or 0)}", UNUSABLE)
    return listener


def _make_empty_input() -> None:
    """What scripts without input read: one file for all of them. Made anew, whatever was there."""
    fresh = f".{EMPTY_INPUT_NAME}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    files.create_file(fresh, b"{}", 0o400)
    os.rename(fresh, EMPTY_INPUT_NAME)  # scripts of an earlier launcher may be about to open it


def _rehearse(node: str) -> None:
    lowest = os.dup(0)  # whatever the rehearsal opens has a higher number
    rehearsal.rehearse(node)
    gc.collect()
    os.closerange(lowest, _DESCRIPTORS_MAX)


def _fail(text: str, code: int) -> None:
    sys.stderr.write(f"launcher: {text}\n")
    sys.stderr.flush()
    os._exit(code)


def _detach() -> int:
    """Fork once; the parent waits until the child listens or fails, and ends with its result."""
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(ready_read)
        return ready_write
    os.close(ready_write)
    if os.read(ready_read, 1):
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1)


def main(arguments: list[str]) -> None:
    """Run the launcher in this process; the caller has given it an empty environment."""
    detach = arguments[-1:] == ["--detach"]
    if detach:
        arguments = arguments[:-1]
    if len(arguments) != 2 or arguments[0] != "--node-dir":
        _fail("usage: --node-dir DIR [--detach]", 2)
    node = os.path.abspath(arguments[1])
    ready = _detach() if detach else -1
    tree.become_ordinary()  # a session may have started it
    with suppress(OSError):  # it leads a session already when it was exec'd by its supervisor
        os.setsid()
    # Whatever the starter left open, a database connection perhaps, must not live on in here.
    if ready >= 0:
        os.closerange(3, ready)
    os.closerange(max(3, ready + 1), _DESCRIPTORS_MAX)
    listener = _listen(node)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2) if detach else (0,):
        os.dup2(null, number)
    _rehearse(node)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # Ignored: what scripts may send to their parent by mistake, and what a terminal sends on.
        signal.signal(number, signal.SIG_IGN if number in programs.IGNORED else signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects ended shims
    launcher = Launcher(listener, tree.boot_id(), f"{node}/{EMPTY_INPUT_NAME}")
    for number in _HANDLED:
        signal.signal(number, launcher.end)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    tree.become_undumpable()
    heap.share()  # with every shim
    gc.disable()
    if ready >= 0:
        os.write(ready, b"1")
        os.close(ready)
    os.chdir("/")  # where every shim begins
    launcher.serve()
    os.unlink(f"{node}/{SOCKET_NAME}")


if __name__ == "__main__":
    main(sys.argv[1:])
