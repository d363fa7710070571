"""The few system calls that the tree needs and Python does not offer."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(parent: int) -> None:
    """Has the kernel send SIGTERM to the caller as soon as `parent`, which forked it, is gone.

    The caller ends at once when that has happened already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def name(text: str) -> None:
    """What `ps -o comm` shows for the caller; 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(text.encode()[:15]))


def protect() -> None:
    """No core dump and no debugger of the same user: the caller and what it forks will hold keys."""
    _prctl(_PR_SET_DUMPABLE, 0)


def descendants(roots: set[int]) -> list[int]:
    """All living processes below `roots`, without the roots."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (parent := _parent(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill(pid: int, number: int) -> None:
    """Sends a signal to exactly one process; one that is gone is passed over."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _parent(folder: Path) -> int | None:
    try:
        fields = (folder / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[1])


def _prctl(option: int, value: object) -> None:
    if hasattr(_libc, "prctl"):
        _libc.prctl(option, value, 0, 0, 0)
