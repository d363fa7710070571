"""A session's part in stopping: tells the shims it carries, and ends what outlived a stop on its node."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from uuid import UUID

from apps.core import clock, node
from apps.dispatch import cancellations, escaped, stopping
from apps.dispatch.cancellations import AttemptReference
from apps.dispatch.carried import Carried
from apps.dispatch.launcher import client
from apps.dispatch.launcher.client import Handle
from apps.dispatch.services import escaped as escaped_service

STOP_CHECK_S = 0.5
# Every start rings too; a stop that comes with many starts waits this long at most.
STOP_PAUSE_S = 0.05
ESCAPED_CHECK_S = 2.0
_LET_GO = ("going", "adopted", "running")


class Stopper:
    """Looks for wishes at its own pace; only shims signal their trees (architecture.md §2)."""

    def __init__(self, owner: str, carried: Mapping[UUID, Carried]) -> None:
        """`owner` is the session's worker place, `carried` what it carries, by attempt."""
        self._owner = owner
        self._carried = carried
        self._stops_at = 0.0
        self._rung = False
        self._escaped_at = 0.0

    def step(self, rung: bool) -> float | None:
        """Delivers what is due; sooner where somebody rang. Raises Busy or DatabaseError.

        Returns when it wants to look again for a ring that came too soon after another (`time.monotonic`).
        """
        now = time.monotonic()
        self._rung |= rung
        at = self._stops_at - (STOP_CHECK_S - STOP_PAUSE_S if self._rung else 0)
        if now >= at:
            self._stops_at = now + STOP_CHECK_S
            carried = [item.lease.run_id for item in self._carried.values() if item.phase in _LET_GO]
            self._deliver(cancellations.wished(carried))
            self._rung = False
        if now >= self._escaped_at:
            self._escaped_at = now + ESCAPED_CHECK_S
            self._kill_escaped()
        return at if self._rung else None

    def deliver_for_others(self) -> None:
        """For a session of this node that lives and hangs: it keeps its scripts, and nobody else can tell them."""
        self._deliver(cancellations.unheard(node.node_id(), clock.now()))

    def tell(self, attempt: AttemptReference, reason: str) -> str:
        """Tells one shim, over its socket where this session has it; one that was frozen is woken to hear it."""
        try:
            handle = Handle.decode(attempt.handle or "")
        except ValueError:
            return "invalid"
        if attempt.pid is not None and attempt.pid != handle.pid:
            return "pid_mismatch"
        item = self._carried.get(attempt.attempt_id)
        shim = item.shim if item is not None else None
        if shim is not None and shim.stop("deadline" if reason == "timeout" else ""):
            client.wake(handle)
            return "termination_requested"
        return client.request_stop(handle)

    def _deliver(self, run_ids: Collection[UUID]) -> None:
        after = None
        while run_ids:
            done = stopping.deliver(self._owner, {"local_process": self.tell}, run_ids, after=after)
            if (after := done.next_cursor) is None:
                return

    def _kill_escaped(self) -> None:
        for wish in escaped_service.waiting(node.node_id()):
            outcome = escaped.kill(wish.processes, wish.boot_id)
            escaped_service.settle(wish, outcome, self._owner)
