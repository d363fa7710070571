"""The scheduler: one small loop that rings whoever has work and watches that somebody answers.

It does no work itself. Any number may run; what they start is single-flight by its own rows.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import DatabaseError, close_old_connections

from apps.core import clock, control, node, wakeups
from apps.core.db import write_transaction
from apps.core.errors import DomainError
from apps.core.jobs import CONTROL
from apps.dispatch import drain
from apps.dispatch.services import adoption

RUNS = "runs"
TICK_S = 1.0
ORPHANS_S = 2.0
DEAF_AFTER = timedelta(seconds=45)

logger = logging.getLogger("qinglong.scheduler")


@dataclass
class _Tick:
    name: str
    function: Callable[[datetime], None]
    every_s: float
    next_at: float


_ticks: dict[str, _Tick] = {}


def register(name: str, function: Callable[[datetime], None], every_s: float, *, after_s: float = 0) -> None:
    """Has the scheduler call `function(now)` every `every_s` seconds: a few queries at most, no work."""
    _ticks[name] = _Tick(name, function, every_s, time.monotonic() + after_s)


def run(requests: int | None = None) -> int:
    """Until SIGTERM; names of clusters to be started anew are written to `requests`, a line each."""
    stop = drain.prepare()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: drain.request())
    register("enrol", control.enrol, 60)
    register("control", _ring_control, TICK_S)
    register("sweep", _sweep, 5)
    register("orphans", _ring_for_orphans, ORPHANS_S)
    patience = DEAF_AFTER.total_seconds()
    register("watch", lambda now: _watch(now, requests), patience, after_s=patience)
    logger.info("scheduler is ready")
    while True:
        close_old_connections()
        _tick(clock.now())
        if select.select([stop], [], [], TICK_S)[0]:
            return 0


def deaf_clusters(now: datetime) -> list[str]:
    """Clusters that answer no ring; one of which a session lives on this node is not deaf, only busy."""
    found = wakeups.deaf(now - DEAF_AFTER)
    return [name for name in found if name == CONTROL or not node.any_slot_held()]


def _tick(now: datetime) -> None:
    for tick in _ticks.values():
        if tick.next_at > time.monotonic():
            continue
        tick.next_at = time.monotonic() + tick.every_s
        try:
            tick.function(now)
        except (DatabaseError, DomainError, OSError) as error:
            # The next tick tries again; a database that is away must not end the scheduler.
            logger.warning("scheduler: %s failed: %s", tick.name, type(error).__name__)


def _ring_control(now: datetime) -> None:
    if control.due(now):
        _ring(CONTROL)


def _sweep(now: datetime) -> None:
    for name in wakeups.unanswered(now):
        _ring(name)


def _ring_for_orphans(_now: datetime) -> None:
    """A session that was killed rings nobody: its scripts would wait for their leases to run out."""
    living = node.held_slots()
    if adoption.orphaned(node.node_id(), living):
        _ring(RUNS, anew=not living)


def _watch(now: datetime, requests: int | None) -> None:
    for name in deaf_clusters(now):
        logger.error("cluster %s answers no ring", name)
        if requests is not None:
            os.write(requests, f"{name}\n".encode())


@write_transaction
def _ring(name: str, *, anew: bool = False) -> None:
    wakeups.ring(name, anew=anew)
