"""A django-q2 cluster as one of our processes: its guard, with what the stock one lacks (dispatch-notes.md).

The stock cluster is a main process that only waits for its sentinel; a SIGKILL of the sentinel then ends the
main process with code 0 and leaves orphans. Here the sentinel *is* the main process, which saves one process
per cluster; its parts end with it, by the kernel. Its guard waits for deaths and for the stop descriptor
instead of looking twice a second, and writes no statistics: nobody could read them from another process's
memory cache.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, get_context
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connections
from django_q import cluster as stock
from django_q.conf import Conf
from django_q.monitor import monitor
from django_q.pusher import pusher
from django_q.signing import SignedPackage
from django_q.worker import worker

from apps.core import wakeups
from apps.core.db import write_transaction
from apps.core.doorbell import Doorbell, own_message
from apps.core.errors import Busy
from apps.dispatch import drain
from apps.dispatch.presence import Presence
from apps.dispatch.supervisor import process

RUNS = "runs"
GUARD_S = 1.0
FROZEN = 70

# How long a cluster whose tree is gone may take to end.
_ORPHAN_S = 10

_LOCK_WAIT_S = 2.0
_PILL_S = 0.1
_MONITOR_S = 30.0
_IDLE = -1
_TITLES = {worker: "worker", monitor: "monitor", pusher: "pusher"}
_fork = get_context("fork")

logger = logging.getLogger("qinglong.cluster")


class Frozen(Exception):
    """A part died while it may have held a lock that the others wait for; only a new cluster helps."""


class Guard(stock.Sentinel):  # type: ignore[misc]
    """Runs the cluster that `select` chose until the drain descriptor becomes readable; raises Frozen."""

    def __init__(self) -> None:
        super().__init__(threading.Event(), threading.Event(), uuid.uuid4(), start=False)
        Doorbell.stop = self._stopping = drain.prepare()
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        self.start()

    def _told_to_end(self, *_: object) -> None:
        drain.request()
        if os.getppid() != self._parent:
            # Nobody is left who would end a cluster that cannot.
            signal.alarm(_ORPHAN_S)

    def spawn_process(self, target: Callable[..., None], *args: Any) -> Any:
        """One part; unlike the stock one it ends with its parent and has a name."""
        part: Any = _fork.Process(target=_part, args=(os.getpid(), target, args), daemon=True)
        if target is worker:
            part.timer = args[2]
            self.pool.append(part)
        part.start()
        return part

    def guard(self) -> None:
        """Replaces what dies until it is told to stop."""
        self.start_event.set()
        logger.info("cluster %s is ready", Conf.CLUSTER_NAME)
        last = time.monotonic()
        while not self._wait():
            now = time.monotonic()
            before = self.reincarnations
            for part in list(self.pool):
                self._tend(part, now - last)
            for part in (self.monitor, self.pusher):
                if not part.is_alive():
                    if part.exitcode < 0:
                        # The monitor always waits inside a lock; without it nothing is ever acknowledged.
                        raise Frozen("its monitor or pusher was killed")
                    self.reincarnate(part)
            last = now
            if self.reincarnations > before:
                # A part that cannot live must not be forked as fast as the machine can.
                connection.wait([self._stopping], GUARD_S)
        self.stop_event.set()
        self.stop()

    def stop(self) -> None:
        """Ends pusher, workers and monitor in this order, and waits for nobody whose other side is gone.

        A signal to the whole group may have ended the workers first. The stock one then waits without end for room
        in their queue, which holds the last ring.
        """
        self.event_out.set()
        while self.pusher.is_alive():
            if not (workers := self._workers()):
                self.pusher.terminate()
            connection.wait([part.sentinel for part in (self.pusher, *workers)])
        pills = len(self.pool)
        while workers := self._workers():
            if not pills:
                connection.wait([part.sentinel for part in workers])
                continue
            with suppress(queue.Full):
                self.task_queue.put("STOP", timeout=_PILL_S)
                pills -= 1
        self.result_queue.put("STOP")
        self.monitor.join(_MONITOR_S)

    def _workers(self) -> list[Any]:
        return [part for part in self.pool if part.is_alive()]

    def _wait(self) -> bool:
        parts = [part.sentinel for part in (*self.pool, self.monitor, self.pusher)]
        ready = connection.wait([self._stopping, *parts], GUARD_S)
        if ready and self._stopping not in ready:
            # A signal to the whole group ends the parts too, and their ends may be seen before our own signal.
            ready = connection.wait([self._stopping], 0.1)
        return self._stopping in ready

    def _tend(self, part: Any, passed: float) -> None:
        lock = part.timer.get_lock()
        if not lock.acquire(timeout=_LOCK_WAIT_S):
            raise Frozen("a worker died with its timer locked")
        try:
            left = part.timer.value
            if left > 0:
                part.timer.value = max(left - passed, 0)
        finally:
            lock.release()
        if part.is_alive():
            if left == 0:
                self.reincarnate(part)
        elif left == _IDLE and part.exitcode < 0:
            # An idle worker waits inside the queue's lock, and the kernel does not give that back.
            raise Frozen("an idle worker was killed")
        else:
            self.reincarnate(part)
            if part.exitcode < 0:
                # What it was at waits for its successor, and nobody else would ring for that within a second.
                _with_database(_ring)


def select(name: str, workers: int | None = None) -> None:
    """Makes django-q2's settings those of one cluster.

    It reads them once, at import, from the environment; a tree that forks several clusters from one loaded
    process needs them chosen after the fork.
    """
    if name != Conf.CLUSTER_NAME:
        known: Any = settings.Q_CLUSTER["ALT_CLUSTERS"]
        chosen = known[name]
        Conf.CLUSTER_NAME = name
        Conf.WORKERS = chosen["workers"]
        Conf.QUEUE_LIMIT = chosen["queue_limit"]
        Conf.TIMEOUT = chosen["timeout"]
        Conf.RETRY = chosen["retry"]
        Conf.POLL = chosen["poll"]
    if workers is not None:
        Conf.WORKERS = workers


def preload() -> None:
    """Touches what every part of a cluster touches first, before it is forked."""
    from django_q.brokers import get_broker

    broker = get_broker("control")
    if isinstance(broker, Doorbell):
        broker.peek()
    for known in wakeups.clusters():
        SignedPackage.loads(own_message(known.name)[0][1])


def run(name: str, workers: int | None = None) -> int:
    """Serves one cluster in this process until SIGTERM; returns the exit code."""
    select(name, workers)
    if name == RUNS:
        Doorbell.watcher = Presence(Conf.WORKERS)
    _with_database(wakeups.renew)
    try:
        Guard()
    except Frozen as error:
        logger.error("cluster %s starts anew: %s", name, error)
        return FROZEN
    return 0


@write_transaction
def _ring(name: str) -> None:
    wakeups.ring(name)


def _with_database(work: Callable[[str], None]) -> None:
    """Lets something be done about our ring, over a connection that no part will inherit."""
    name = Conf.CLUSTER_NAME
    try:
        work(name)
    except (Busy, DatabaseError) as error:
        # The sweep does the same, only later.
        logger.warning("cluster %s: its ring could not be renewed: %s", name, type(error).__name__)
    finally:
        connections.close_all()


def _part(parent: int, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    # First, or the guard's own handler would swallow the signal that says the guard is gone.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.end_with_parent(parent)
    process.name(f"ql {Conf.CLUSTER_NAME} {_TITLES[target]}")
    target(*args)
