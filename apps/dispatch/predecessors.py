"""What lost attempts of a run may have left running on this node: the next one waits for its end (architecture.md §2).

A lost attempt is one whose word does not count any more, not one whose script is known to be dead.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from apps.core import node
from apps.dispatch import carried, journal, launching
from apps.dispatch.launcher import client
from apps.dispatch.launcher.client import Handle
from apps.dispatch.launcher.tree import boot_id, read_stat
from apps.runs.models import Run, RunAttempt

PAUSE_S = 0.5
_ENVIRONMENT_MAX = 1 << 20

logger = logging.getLogger("qinglong.dispatch")


@dataclass(frozen=True)
class Predecessor:
    """An earlier attempt: its shim, and the variable that its processes carry."""

    handle: Handle
    mark: bytes

    def stop(self) -> None:
        """Asks its shim to end the tree, where it still is one: nobody waits for that script any more."""
        client.request_stop(self.handle)

    def gone(self) -> bool:
        """Whether neither the shim nor anything of its tree is left on this node."""
        if self.handle.boot_id != boot_id():
            return True
        return client.inspect(self.handle) != "running" and not any(map(self._started, _processes()))

    def _started(self, pid: int) -> bool:
        """Whether a process is of the shim's session, or carries the attempt's mark in a session of its own.

        The number of a session is nobody else's while one process of it lives.
        """
        try:
            return os.getsid(pid) == self.handle.pid or self.mark in _environment(pid)
        except OSError:
            return False


@dataclass(frozen=True)
class Holder:
    """A shim that holds the folder of an attempt for a session whose lease is over: it will never be let go."""

    attempt_id: UUID
    folder: str

    def stop(self) -> None:
        """Asks it to end, even where somebody froze it; one that has let a script go is never asked."""
        with suppress(OSError):
            for found in journal.entries(str(launching.receipts_root()), str(self.attempt_id)):
                if found is not None and found.state == journal.ACCEPTED:
                    client.request_stop(Handle(found.pid, found.start_ticks, found.boot_id))

    def gone(self) -> bool:
        """Whether nobody holds the folder any more."""
        return not os.path.exists(self.folder) or carried.unheld(self.folder)  # noqa: PTH110


def of(attempt: RunAttempt) -> list[Predecessor]:
    """The lost attempts before this one that had begun on this node; no query for a first attempt."""
    if attempt.attempt == 1:
        return []
    rows = RunAttempt.objects.filter(
        run_id=attempt.run_id,
        status="lost",
        executor_handle__isnull=False,
        worker_id__startswith=f"{node.node_id()}:",
    )
    return [found for row in rows if (found := one(row)) is not None]


def one(attempt: RunAttempt) -> Predecessor | None:
    """What an attempt that had begun may have left; None where its shim is not known."""
    try:
        handle = Handle.decode(attempt.executor_handle or "")
    except ValueError:
        return None
    return Predecessor(handle, f"\0RUN_FENCE={attempt.run_id}:{attempt.attempt}\0".encode())


def stop_lost(attempt: RunAttempt) -> bool:
    """Asks the shim of a lost attempt of this node to end its tree; whether there still was one.

    A node that was away finds that what it carried was decided without it, and may run elsewhere by now.
    """
    found = one(attempt)
    if found is None or client.inspect(found.handle) != "running":
        return False
    logger.warning("run %s was lost here and still runs: it is stopped", attempt.run_id)
    found.stop()
    return True


class Waiting:
    """Attempts of one session that may not begin yet."""

    def __init__(self) -> None:
        self._before: dict[UUID, tuple[UUID, Sequence[Predecessor | Holder]]] = {}
        self._look_at = 0.0

    def waits(self, attempt: RunAttempt) -> bool:
        """Whether it has to wait; then its predecessors are asked to end, and `look` tells when they have."""
        before = [one for one in of(attempt) if not one.gone()]
        for one in before:
            one.stop()
        if before:
            self._before[attempt.pk] = (attempt.run_id, before)
        return bool(before)

    def wait_for(self, run_id: UUID, holder: Holder) -> None:
        """Has an attempt wait for the shim that holds its folder."""
        holder.stop()
        self._before[holder.attempt_id] = (run_id, [holder])

    def look(self) -> tuple[list[UUID], list[UUID]]:
        """Attempts that are alone on the node now, and those whose runs are to be stopped; every 0.5 s at most."""
        now = time.monotonic()
        if not self._before or now < self._look_at:
            return [], []
        self._look_at = now + PAUSE_S
        runs = [run_id for run_id, _before in self._before.values()]
        stopped = set(
            Run.objects.filter(pk__in=runs, cancel_requested_at__isnull=False).values_list("pk", flat=True)
        )
        unwanted = [pk for pk, (run_id, _before) in self._before.items() if run_id in stopped]
        for attempt_id in unwanted:
            del self._before[attempt_id]
        alone = [pk for pk, (_run_id, before) in self._before.items() if all(one.gone() for one in before)]
        for attempt_id in alone:
            del self._before[attempt_id]
        return alone, unwanted

    def forget(self, attempt_id: UUID) -> None:
        """It is no longer this session's."""
        self._before.pop(attempt_id, None)

    def __len__(self) -> int:
        return len(self._before)


def _processes() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            found = read_stat(int(entry.name))
            if found is not None and found.state not in "ZX":
                yield int(entry.name)


def _environment(pid: int) -> bytes:
    descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"\0" + os.read(descriptor, _ENVIRONMENT_MAX) + b"\0"
    finally:
        os.close(descriptor)
