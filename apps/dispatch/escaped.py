"""Ends processes that outlived a stop, each by its identity (lessons.md, idea 5)."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping

from apps.dispatch.launcher.tree import boot_id, read_stat

PATIENCE_S = 0.2


def kill(processes: Iterable[Mapping[str, int]], boot: str) -> dict[str, str]:
    """Kills processes by pid and start ticks, and waits 0.2 s at most for them to be gone.

    By pid: `killed`, `already_gone`, `identity_mismatch` (the pid is somebody else's now), `refused` (not ours to
    signal) or `still_there` (killed, and held in the kernel).
    """
    outcome: dict[str, str] = {}
    told: dict[int, int] = {}
    same_boot = boot == boot_id()
    try:
        for one in processes:
            pid = one["pid"]
            outcome[str(pid)] = _tell(pid, one["start_ticks"], told) if same_boot else "already_gone"
        until = time.monotonic() + PATIENCE_S
        for pid, descriptor in told.items():
            if _ended(descriptor, until):
                outcome[str(pid)] = "killed"
    finally:
        for descriptor in told.values():
            os.close(descriptor)
    return outcome


def _tell(pid: int, start_ticks: int, told: dict[int, int]) -> str:
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return "already_gone"
    told[pid] = descriptor
    # Read after opening: from here on the descriptor cannot come to mean another process.
    found = read_stat(pid)
    if found is None or found.state in "ZX":
        outcome = "already_gone"
    elif found.start_ticks != start_ticks:
        outcome = "identity_mismatch"
    elif _ours(pid):
        outcome = "refused"
    else:
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return "still_there"
        except ProcessLookupError:
            outcome = "already_gone"
        except PermissionError:
            outcome = "refused"
    os.close(told.pop(pid))
    return outcome


def _ours(pid: int) -> bool:
    """Whether it belongs to the panel itself, which no script's tree ever does: those lead sessions of their own."""
    try:
        return os.getsid(pid) == os.getsid(0)
    except OSError:
        return False


def _ended(descriptor: int, until: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0, (until - time.monotonic()) * 1000)))
