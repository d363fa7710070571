"""Control groups, version 2: one for each run that has limits which only such a group can keep.

`delegate` is for whoever starts the launcher; it moves its process into a leaf, since a group whose children are
controlled may hold no process itself. Where the panel may not write there, nothing of this is used.
"""
# Why not pathlib: the shim stays small without it.
# ruff: noqa: PTH102, PTH106, PTH208

from __future__ import annotations

import os
import time
from contextlib import suppress

from apps.dispatch.launcher.spec import Limits

ROOT = "/sys/fs/cgroup"
LEAF = "panel"
_PREFIX = "run-"
_PERIOD_US = 100_000
_REMOVE_S = 1.0
# A controller's file, and the limit that it keeps.
CONTROLLERS = {"memory": "memory_bytes", "pids": "processes", "cpu": "cpu_percent"}


def own(process: int | str = "self", root: str = ROOT) -> str | None:
    """The group of a process, its leaf taken off; None where none can be made below it.

    That is without the unified hierarchy at `root`, without the right to write, and at the root of the machine.
    """
    base = _base(process, root)
    return base if base and os.access(base, os.W_OK) and os.access(f"{base}/cgroup.type", os.F_OK) else None


def _base(process: int | str, root: str) -> str | None:
    if not os.access(f"{root}/cgroup.controllers", os.R_OK):
        return None
    for line in _read(f"/proc/{process}/cgroup").splitlines():
        if line.startswith("0::/"):
            return f"{root}{line[3:]}".rstrip("/").removesuffix(f"/{LEAF}")
    return None


def delegate(root: str = ROOT) -> None:
    """Get groups for runs ready, best effort, and remove empty ones that killed shims left.

    Not where others live in the same group: their controllers are not ours to switch.
    """
    base = own(root=root)
    if base is None or set(_read(f"{base}/cgroup.procs").split()) - {str(os.getpid())}:
        return
    with suppress(OSError):
        for name in os.listdir(base):
            if name.startswith(_PREFIX):
                with suppress(OSError):
                    os.rmdir(f"{base}/{name}")
    wanted = CONTROLLERS.keys() & set(_read(f"{base}/cgroup.controllers").split())
    if not wanted:
        return
    with suppress(OSError):
        os.makedirs(f"{base}/{LEAF}", exist_ok=True)  # noqa: PTH103
        _write(f"{base}/{LEAF}/cgroup.procs", str(os.getpid()))
    for controller in wanted:
        with suppress(OSError):
            _write(f"{base}/cgroup.subtree_control", f"+{controller}")


def kept(process: int | str = "self", root: str = ROOT) -> tuple[str, frozenset[str]]:
    """Where groups can be made for a process, and the limits that they keep; no limits where none can be."""
    base = own(process, root)
    if base is None:
        return "", frozenset()
    given = _read(f"{base}/cgroup.subtree_control").split()
    return base, frozenset(limit for controller, limit in CONTROLLERS.items() if controller in given)


class Group:
    """The group of one run; `held` are the limits it keeps."""

    def __init__(self, base: str, attempt_id: str) -> None:
        self._path = f"{base}/{_PREFIX}{attempt_id}"
        self.held: frozenset[str] = frozenset()

    @classmethod
    def make(cls, attempt_id: str, limits: Limits) -> Group | None:
        """A group that keeps at least one of the limits; None where nothing calls for it or none can be made."""
        base, possible = kept()
        wanted = {name for name in possible if getattr(limits, name) is not None}
        if not wanted:
            return None
        group = cls(base, attempt_id)
        try:
            os.mkdir(group._path, 0o700)
            group.held = frozenset(wanted)
            group._set(limits)
        except OSError:
            group.remove()
            return None
        return group

    def _set(self, limits: Limits) -> None:
        if "memory_bytes" in self.held:
            _write(f"{self._path}/memory.max", str(limits.memory_bytes))
            with suppress(OSError):  # a kernel without swap accounting
                _write(f"{self._path}/memory.swap.max", "0")
            with suppress(OSError):
                _write(f"{self._path}/memory.oom.group", "1")
        if "processes" in self.held:
            _write(f"{self._path}/pids.max", str(limits.processes))
        if "cpu_percent" in self.held and limits.cpu_percent is not None:
            _write(f"{self._path}/cpu.max", f"{limits.cpu_percent * _PERIOD_US // 100} {_PERIOD_US}")

    def enter(self) -> None:
        """Move this process into the group. OSError."""
        _write(f"{self._path}/cgroup.procs", "0")

    def kill(self) -> None:
        """KILL to all in it at once, where the kernel can."""
        with suppress(OSError):
            _write(f"{self._path}/cgroup.kill", "1")

    def reached(self) -> str | None:
        """The limit that somebody in the group met: memory killed for, or a process that was refused."""
        if _count(f"{self._path}/memory.events", "oom_kill"):
            return "memory_bytes"
        return "processes" if _count(f"{self._path}/pids.events", "max") else None

    def remove(self) -> None:
        """Take the group away once its last process is gone; one that stays is left to the next `delegate`."""
        until = time.monotonic() + _REMOVE_S
        while True:
            try:
                os.rmdir(self._path)
                return
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() >= until:
                    return
                time.sleep(0.01)


def _count(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _space, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 65_536).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
