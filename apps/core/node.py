"""Who this node is: a random id in its own folder, and the locks that say which of its parts are alive.

All locks are `flock`s on files of `settings.NODE_DIR`: the kernel drops them with their holder, whatever
ended it. A node is never known by its host name (architecture.md §2, "Scale-out"; runs.md §13.2 for the idea).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, Unavailable
from qinglong.environment import GATE

SLOTS_MAX = 64
_ID = re.compile(r"[0-9a-f]{32}")


class NodeUnusable(Unavailable):
    """The node's folder cannot be used; `extra["reason"]` is the system's word for why."""

    code = "node_unusable"
    message = _("The folder of this node cannot be read or written.")


class AlreadyRunning(Conflict):
    code = "already_running"
    message = _("QingLong is already running on this home folder.")


class NoFreeSlot(Conflict):
    code = "no_free_slot"
    message = _("All worker places of this node are taken.")


@dataclass(frozen=True)
class Lock:
    """A held lock; it ends with `release()` or with the last process that inherited the descriptor."""

    descriptor: int

    def release(self) -> None:
        """Gives the lock up; safe to call twice."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


@dataclass(frozen=True)
class SlotLock(Lock):
    """One worker place of this node, numbered from 1."""

    number: int

    def show_life(self) -> None:
        """Notes in the lock's file that its holder still goes round."""
        os.utime(self.descriptor)


@dataclass(frozen=True)
class Process:
    """A process told apart from every other that had or will have its number."""

    pid: int
    started: int
    boot: str

    @classmethod
    def current(cls) -> Process:
        """The calling process."""
        pid = os.getpid()
        return cls(pid, _start_ticks(pid) or 0, _boot_id())

    def is_alive(self) -> bool:
        """Whether exactly this process still exists, zombies excluded."""
        return self.boot == _boot_id() and _start_ticks(self.pid) == self.started


def folder(*parts: str) -> Path:
    """A folder below the node's own, 0700, made when missing; raises NodeUnusable."""
    path = Path(settings.NODE_DIR)
    try:
        for part in ("", *parts):
            path /= part
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077 and mode != GATE:
                path.chmod(0o700)
    except OSError as error:
        raise NodeUnusable(reason=error.strerror) from error
    return path


def node_id() -> str:
    """The 32 hexadecimal digits this node is known by; made once, and read once by each process.

    Raises NodeUnusable, also for a damaged file.
    """
    return _read_id(Path(settings.NODE_DIR))


@lru_cache(maxsize=4)
def _read_id(_folder: Path) -> str:
    path = folder() / "id"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read(64).strip()
            if not text:
                text = secrets.token_hex(16)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
    except (OSError, UnicodeDecodeError) as error:
        raise NodeUnusable(reason=str(error)) from error
    if not _ID.fullmatch(text):
        raise NodeUnusable(reason="id")
    return text


def claim_slot(most: int = SLOTS_MAX, first: Sequence[int] = ()) -> SlotLock:
    """Takes the lowest worker place that no living session of this node holds, of `most`; raises NoFreeSlot.

    Those of `first` are tried before the others.
    """
    workers = folder("workers")
    for number in [*first, *range(1, min(most, SLOTS_MAX) + 1)]:
        descriptor = _try_lock(workers / f"{number}.lock")
        if descriptor is not None:
            return SlotLock(descriptor, number)
    raise NoFreeSlot


def slot_held(number: int) -> bool:
    """Whether a living session of this node holds the worker place."""
    path = _workers() / f"{number}.lock"
    if not path.exists():
        return False
    descriptor = _try_lock(path, shared=True)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def held_slots() -> list[int]:
    """The worker places that living sessions of this node hold."""
    try:
        found = list(_workers().iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NodeUnusable(reason=error.strerror) from error
    numbers = sorted(int(path.stem) for path in found if path.suffix == ".lock" and path.stem.isdigit())
    return [number for number in numbers if slot_held(number)]


def silent_slots(after_s: float) -> dict[int, float]:
    """Held worker places whose holder has shown no life for `after_s` seconds, each with its last sign."""
    workers, before = _workers(), time.time() - after_s
    shown = {number: (workers / f"{number}.lock").stat().st_mtime for number in held_slots()}
    return {number: at for number, at in shown.items() if at <= before}


def up_lock(wait_s: float = 0.0) -> Lock:
    """Makes the caller the one `up` of this node; raises AlreadyRunning.

    Children inherit the lock, so it is also held while those of an `up` that was killed still end: for them,
    and only for them, the caller waits up to `wait_s` seconds.
    """
    path = folder() / "up.lock"
    give_up = time.monotonic() + wait_s
    while (descriptor := _try_lock(path)) is None:
        holder = _read_holder(path)
        if holder is None or holder.is_alive() or time.monotonic() >= give_up:
            raise AlreadyRunning
        time.sleep(0.1)
    me = Process.current()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps([me.pid, me.started, me.boot]).encode(), 0)
    return Lock(descriptor)


def _workers() -> Path:
    """Where the locks of worker places are, if any was ever taken: who only looks makes nothing."""
    return Path(settings.NODE_DIR) / "workers"


def _try_lock(path: Path, *, shared: bool = False) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NodeUnusable(reason=error.strerror) from error
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise NodeUnusable(reason=error.strerror) from error
    return descriptor


def _read_holder(path: Path) -> Process | None:
    try:
        pid, started, boot = json.loads(path.read_text(encoding="ascii"))
        return Process(int(pid), int(started), str(boot))
    except (OSError, ValueError, TypeError):
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat; None for a process that is gone or only waits to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
