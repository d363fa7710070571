"""The session loop, which knows nothing of runs (architecture.md §2, upper-floors.md §7.8).

It registers the worker, shows that it lives, wakes on rings, drains and ends when idle. What is carried comes
from sources that are plugged in; runs are the first.
"""

from __future__ import annotations

import logging
import math
import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psycopg
from django.db import DatabaseError, connection

from apps.core import node, wakeups
from apps.core.errors import Busy
from apps.core.listener import Listener
from apps.core.node import SlotLock
from apps.dispatch import journal
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.services import nodes, workers
from apps.dispatch.services.passes import SessionReplaced

logger = logging.getLogger("qinglong.dispatch")

LEASE_MS = 20_000
RENEW_S = 6.0
SHOW_S = 1.0
POLL_S = 2.0
BURST = 3
LINGER_S = 0.006
QUIET_S = 0.002
TOGETHER_S = 0.0005  # in a burst answers are taken several at a time, not one for each time a session wakes
MAX_AGE_S = 600.0
IDLE_S = 30.0


class Source(Protocol):
    """Something that sessions carry. All methods run in the loop's thread and may use the database."""

    def open(self, loop: Loop) -> None:
        """Called once, when the session is registered."""

    def step(self, look: bool, rung: bool) -> bool:
        """Stores what happened and, where `look` is set, takes new work; True asks for another step at once.

        `rung`: somebody outside rang since the last step, perhaps to have something stopped.
        """

    def leases(self) -> list[LeaseFence]:
        """What the heartbeat has to renew."""

    def renewed(self, kept: dict[Any, LeaseFence]) -> None:
        """The leases that still stand; the others are no longer this session's."""

    def carried(self) -> int:
        """How many things are under way."""

    def expects(self) -> bool:
        """Whether one of them was begun a moment ago, so that its next word may come any moment."""

    def close(self) -> None:
        """Lets go; what still runs is left to the next session of this node."""


class Loop:
    """One session of one worker place."""

    def __init__(
        self,
        cluster: str,
        sources: Sequence[Source],
        *,
        slots: int,
        idle_s: float | None = IDLE_S,
        max_age_s: float | None = MAX_AGE_S,
        drain: int | None = None,
        places: Sequence[int] = (),
    ) -> None:
        """`idle_s` and `max_age_s` None = resident; `drain` is a descriptor that is readable when to stop.

        `places` are the worker places to be taken before others.
        """
        self.cluster = cluster
        self.slots = slots
        self._sources = sources
        self._idle_s = idle_s
        self._max_age_s = max_age_s
        self._drain = drain
        self._places = places
        self.selector = selectors.DefaultSelector()
        self.draining = False
        self.fence: WorkerFence
        self._began = time.monotonic()
        self._busy_at = self._began
        self._renew_at = self._began + RENEW_S
        self._look = True
        self._rang = True
        self._wake_at = math.inf

    def run(self) -> str:
        """Works until it is idle, old, drained or replaced, and says which."""
        slot = node.claim_slot(max(1, journal.CAPACITY // self.slots), first=self._places)
        try:
            return self._session(slot)
        finally:
            slot.release()
            self.selector.close()

    def look_again(self) -> None:
        """There may be work: the next step looks for it."""
        self._look = True

    def wake_by(self, moment: float) -> None:
        """The next wait ends by then (`time.monotonic`) at the latest."""
        self._wake_at = min(self._wake_at, moment)

    def watch(self, fileobj: Any, callback: Callable[[], None]) -> None:
        """Calls back when a descriptor becomes readable."""
        self.selector.register(fileobj, selectors.EVENT_READ, callback)

    def watch_for(self, fileobj: Any, callback: Callable[[], None]) -> None:
        """Calls somebody else back for what is watched already."""
        self.selector.modify(fileobj, selectors.EVENT_READ, callback)

    def unwatch(self, fileobj: Any) -> None:
        """Stops watching; called before the descriptor is closed."""
        self.selector.unregister(fileobj)

    def request_drain(self) -> None:
        """Takes nothing new and ends as soon as possible; scripts go on."""
        self.draining = True

    def _session(self, slot: SlotLock) -> str:
        worker = workers.register(node.node_id(), slot.number, self.slots, [self.cluster])
        self.fence = WorkerFence.of(worker)
        self.held_back = worker.status == "draining" or nodes.is_off(worker.node.clock_skew_ms)
        listener = Listener(self.cluster)
        wakeups.answer(self.cluster)
        self.watch(listener, lambda: self._rung(listener))
        if self._drain is not None:
            self.watch(self._drain, self.request_drain)
        opened: list[Source] = []
        try:
            for source in self._sources:
                opened.append(source)
                source.open(self)
            return self._work(slot)
        except SessionReplaced:
            return "replaced"
        finally:
            for source in opened:
                source.close()
            listener.close()
            self._leave()

    def _work(self, slot: SlotLock) -> str:
        show_at = 0.0
        while True:
            if self.draining:
                return "drained"
            again = self._steps()
            now = time.monotonic()
            if now >= show_at:
                slot.show_life()
                show_at = now + SHOW_S
            if now >= self._renew_at:
                self._heartbeat()
            carried = sum(source.carried() for source in self._sources)
            if carried:
                self._busy_at = now
            if not again and (reason := self._ending(now, carried)):
                return reason
            until = min(self._renew_at, self._wake_at, now + POLL_S)
            self._wake_at = math.inf
            self._wait(0 if again else max(0.0, until - now), carried)

    def _steps(self) -> bool:
        look = self._look and not self.held_back
        rung, self._rang = self._rang, False
        self._look = False
        again = False
        for source in self._sources:
            try:
                again |= source.step(look, rung)
            except (Busy, DatabaseError) as error:
                # Nothing was stored; what was to be stored is still there and is tried again.
                logger.warning("a pass could not be stored: %s", type(error).__name__)
                self._look |= look
                self._rang |= rung
                self._recover()
        return again

    def _wait(self, timeout: float, carried: int) -> None:
        """Waits for the next thing to happen; in a burst, for its neighbours too, to store them all at once."""
        ready = self.selector.select(timeout)
        if not ready and timeout:
            self._look = True
        if carried < BURST:
            self._call(ready)
            return
        give_up = time.monotonic() + LINGER_S
        while ready:
            self._call(ready)
            left = give_up - time.monotonic()
            if left <= 0 or not any(source.expects() for source in self._sources):
                return
            time.sleep(TOGETHER_S)
            ready = self.selector.select(min(left, QUIET_S))

    def _call(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        for key, _events in ready:
            key.data()

    def _rung(self, listener: Listener) -> None:
        try:
            listener.drain()
        except (OSError, psycopg.Error):
            self.draining = True
        self._look = self._rang = True

    def _heartbeat(self) -> None:
        self._renew_at = time.monotonic() + RENEW_S
        held = [lease for source in self._sources for lease in source.leases()]
        free = max(0, self.slots - len(held))
        try:
            found = workers.heartbeat(self.fence, free, held, LEASE_MS)
        except (Busy, DatabaseError) as error:
            logger.warning("a heartbeat could not be stored: %s", type(error).__name__)
            self._renew_at = time.monotonic() + 1.0
            self._recover()
            return
        if found is None:
            raise SessionReplaced
        self.held_back = found.held_back
        for source in self._sources:
            source.renewed(found.kept)

    def _ending(self, now: float, carried: int) -> str | None:
        if self.held_back and not carried and self._idle_s is not None:
            return "drained"
        if self._max_age_s is not None and now - self._began >= self._max_age_s:
            return "old"
        if self._idle_s is not None and not carried and now - self._busy_at >= self._idle_s:
            return "idle"
        return None

    def _recover(self) -> None:
        """A broken connection is closed, so that the next pass opens a new one; not in the middle of a burst."""
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        time.sleep(0.05)

    def _leave(self) -> None:
        try:
            workers.leave(self.fence)
        except (Busy, DatabaseError) as error:
            logger.warning("a session could not sign off: %s", type(error).__name__)
