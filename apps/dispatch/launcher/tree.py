"""Everything a shim's script has started: finding it, freezing it, signalling it (lessons D12).

The shim is the subreaper of the tree, so whatever double-forks or takes a session of its own still has the
shim as an ancestor. A process is signalled only through a pidfd whose start time was checked after opening:
a pid that was given to somebody else in between is never touched.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

# Passes of one freeze: each stops what the last one found newly born. A stopped parent bears nothing, so
# two or three are usual; the bound covers processes the kernel cannot stop at once.
FREEZE_PASSES = 100
_PAUSE_S = 0.001


@dataclass(frozen=True, slots=True)
class Process:
    """A process with its identity: start time in clock ticks since boot."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Stat:
    """What `/proc/<pid>/stat` says that matters here."""

    parent: int
    state: str
    start_ticks: int


def read_stat(pid: int) -> Stat | None:
    """Parent, state and start time, or None when there is no such process."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # The name stands in brackets and may contain anything, brackets too: count from the last one.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(int(fields[1]), fields[0].decode(), int(fields[19]))


def boot_id() -> str:
    """Identity of this boot of the kernel."""
    descriptor = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 64).decode().strip()
    finally:
        os.close(descriptor)


def descendants(root: int) -> dict[int, Stat]:
    """Every living descendant of `root` by pid, zombies left out."""
    # Through the whole table: the kernel's own list of children is optional and missing on many machines.
    table: dict[int, Stat] = {}
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  - pathlib is not loaded in a shim
        if name.isdigit() and (found := read_stat(int(name))) is not None:
            table[int(name)] = found
            children.setdefault(found.parent, []).append(int(name))
    below: dict[int, Stat] = {}
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            waiting.append(pid)
            if table[pid].state not in "ZX":
                below[pid] = table[pid]
    return below


def send(process: Process, number: int) -> bool:
    """Signal exactly this process; False when it is gone or is not ours to signal."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        found = read_stat(process.pid)
        if found is None or found.start_ticks != process.start_ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def freeze(root: int) -> set[Process]:
    """SIGSTOP all descendants until a pass finds nobody new and nobody running.

    Returns who is in the tree. At most FREEZE_PASSES passes of about a millisecond and a table scan each.
    """
    frozen: set[Process] = set()
    for _ in range(FREEZE_PASSES):
        moving = False
        for pid, found in descendants(root).items():
            process = Process(pid, found.start_ticks)
            if process not in frozen:
                frozen.add(process)
                send(process, signal.SIGSTOP)
                moving = True
            elif found.state not in "Tt":
                # It was woken, or the stop is still on its way; asking twice does no harm.
                send(process, signal.SIGSTOP)
                moving = True
        if not moving:
            break
        time.sleep(_PAUSE_S)
    return frozen


def terminate(tree: set[Process]) -> None:
    """Leave SIGTERM with each process of a frozen tree, then let all run on to meet it."""
    for process in tree:
        send(process, signal.SIGTERM)
    for process in tree:
        send(process, signal.SIGCONT)


def kill(root: int) -> set[Process]:
    """Freeze the tree and SIGKILL it; call again until nobody is left."""
    tree = freeze(root)
    for process in tree:
        send(process, signal.SIGKILL)
    return tree


def become_subreaper() -> None:
    """Adopt the orphans of this process's tree. OSError when the kernel refuses."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def become_undumpable() -> None:
    """Close this process's memory to others of the same user, best effort; children inherit that until
    they start a program."""
    with suppress(OSError):
        _prctl(_PR_SET_DUMPABLE, 0)


def become_batch() -> None:
    """Wait for a processor's turn instead of taking it from whoever is at work, best effort.

    Shims and sessions wake each other many times a second. Each time one pushed the other aside in the middle of its
    work, a storm of small runs had both refill the processor's caches. Who was given another policy keeps it.
    """
    with suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def become_ordinary() -> None:
    """The opposite, for what is started by who waits."""
    with suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_BATCH:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


_PRCTL = ctypes.CDLL(None, use_errno=True).prctl
_PRCTL.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if _PRCTL(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
