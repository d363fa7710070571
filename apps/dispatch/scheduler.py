"""The scheduler: one small loop that rings whoever has work and watches that somebody answers.

Of itself it does no work. Any number may run; what they start is single-flight by its own rows. Apps above plug
in what has to happen at a moment of its own: an alarm says when it wants to be called again, and is called
earlier when its channel is nudged.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from django.db import DatabaseError, close_old_connections

from apps.core import clock, control, node, wakeups
from apps.core.db import write_transaction
from apps.core.errors import DomainError
from apps.core.jobs import CONTROL
from apps.core.listener import Listener
from apps.dispatch import drain, glance
from apps.dispatch.services import adoption
from apps.dispatch.supervisor.tree import BEAT

RUNS = "runs"
TICK_S = 1.0
ORPHANS_S = 2.0
ALARM_S = 5.0
BEAT_S = 2.0
# Nothing answers a ring, or a session goes round no more: what is needed is seconds, this is many times that.
DEAF_AFTER = timedelta(seconds=6)
SILENT_S = 7.0
# How long one that was asked to start anew may take before it is asked again.
PATIENCE_S = 15.0

logger = logging.getLogger("qinglong.scheduler")


@dataclass
class _Tick:
    name: str
    function: Callable[[datetime], None]
    every_s: float
    next_at: float


Alarm = Callable[[datetime], datetime | None]


@dataclass
class _Clock:
    """An alarm as it goes in this process; `next_at` is a wall clock's time, None = when nudged."""

    name: str
    alarm: Alarm
    channel: str
    next_at: datetime | None
    checked_at: float = 0.0
    listener: Listener | None = None


_ticks: dict[str, _Tick] = {}
_alarms: dict[str, tuple[Callable[[], Alarm], str]] = {}
boot_id: UUID | None = None
"""The start of `up` that this process belongs to; None outside of one."""


def register(name: str, function: Callable[[datetime], None], every_s: float, *, after_s: float = 0) -> None:
    """Has the scheduler call `function(now)` every `every_s` seconds: a few queries at most, no work."""
    _ticks[name] = _Tick(name, function, every_s, time.monotonic() + after_s)


def register_alarm(name: str, make: Callable[[], Alarm], channel: str) -> None:
    """Has each scheduler make an alarm and call it at the time that its last call returned.

    It is also called when `channel` is nudged (`wakeups.nudge`), and every 5 s whatever happens.
    """
    _alarms[name] = (make, channel)


def run(requests: int | None = None, *, boot: UUID | None = None) -> int:
    """Until SIGTERM; names of clusters to be started anew are written to `requests`, a line each.

    `boot` names the start of `up` that this scheduler belongs to.
    """
    global boot_id
    boot_id = boot
    stop = drain.prepare()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: drain.request())
    _plan(requests)
    clocks = [_Clock(name, make(), channel, clock.now()) for name, (make, channel) in _alarms.items()]
    logger.info("scheduler is ready")
    while True:
        close_old_connections()
        _tick(clock.now())
        for each in clocks:
            _go_off(each)
        ears: list[Any] = [each.listener for each in clocks if each.listener is not None]
        woken = select.select([stop, *ears], [], [], min([TICK_S, *map(_pause, clocks)]))[0]
        if stop in woken:
            return 0
        for each in clocks:
            if each.listener in woken:
                _hear(each)


def deaf_clusters(now: datetime) -> list[str]:
    """Clusters that answer no ring. Not deaf, only busy, is one of which a session goes round on this node, or a
    job is under way.
    """
    return [name for name in wakeups.deaf(now - DEAF_AFTER) if not _busy(name, now)]


def _plan(requests: int | None) -> None:
    """What is done how often."""
    seen, watch = glance.Glances(), _Watch(requests)
    register("enrol", control.enrol, 60)
    register("control", seen.when(lambda at: at.due, _ring_control), TICK_S)
    register("sweep", seen.when(lambda at: at.unanswered, _sweep), 5)
    register("orphans", seen.when(lambda at: at.carried, _ring_for_orphans), ORPHANS_S)
    if requests is not None:
        register("beat", lambda _now: _tell(requests, BEAT), BEAT_S)
    after_s = DEAF_AFTER.total_seconds()
    register("deaf", seen.when(lambda at: at.unanswered, watch.for_deaf), TICK_S, after_s=after_s)
    register("silent", watch.for_silent, TICK_S, after_s=after_s)


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


def _go_off(each: _Clock) -> None:
    """Calls an alarm that is due. It listens before it looks, so that no nudge slips in between."""
    now = clock.now()
    late = time.monotonic() - each.checked_at >= ALARM_S
    if not late and (each.next_at is None or each.next_at > now):
        return
    each.checked_at = time.monotonic()
    try:
        if each.listener is None:
            each.listener = Listener(each.channel)
        each.next_at = each.alarm(now)
    except (DatabaseError, psycopg.Error, DomainError, OSError) as error:
        each.next_at = now + timedelta(seconds=TICK_S)
        logger.warning("scheduler: %s failed: %s", each.name, type(error).__name__)


def _pause(each: _Clock) -> float:
    """Seconds until the alarm goes off."""
    if each.next_at is None:
        return ALARM_S
    return max(0.0, (each.next_at - clock.now()).total_seconds())


def _hear(each: _Clock) -> None:
    each.next_at = clock.now()
    try:
        assert each.listener is not None
        each.listener.drain()
    except (OSError, psycopg.Error):
        # The way is broken; the next call makes a new one.
        with contextlib.suppress(OSError, psycopg.Error):
            each.listener.close()  # type: ignore[union-attr]
        each.listener = None


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


def _busy(name: str, now: datetime) -> bool:
    if name == CONTROL:
        return control.under_way(now)
    return bool(set(node.held_slots()) - node.silent_slots(SILENT_S).keys())


class _Watch:
    """Looks for clusters that are frozen, and asks for a new start where a supervisor listens."""

    def __init__(self, requests: int | None) -> None:
        self._requests = requests
        self._silent: dict[int, float] = {}
        self._asked_at: dict[str, float] = {}

    def for_deaf(self, now: datetime) -> None:
        """Names each cluster that answers no ring."""
        for name in deaf_clusters(now):
            self._ask(name, "answers no ring")

    def for_silent(self, _now: datetime) -> None:
        """Names the runs cluster when a session went silent since the last look."""
        silent = node.silent_slots(SILENT_S)
        # Once for each silence: a session that was started apart from us is not brought back by a new start.
        if fresh := silent.items() - self._silent.items():
            lived_at = max(at for _number, at in fresh)
            self._ask(RUNS, "has a session that shows no life", time.monotonic() - time.time() + lived_at)
        self._silent = silent

    def _ask(self, name: str, why: str, lived_at: float = -math.inf) -> None:
        """Once in PATIENCE_S: while a cluster starts anew it is as deaf as before. One that lived meanwhile has."""
        asked_at = self._asked_at.get(name, -math.inf)
        if time.monotonic() - asked_at < PATIENCE_S and lived_at <= asked_at:
            return
        self._asked_at[name] = time.monotonic()
        logger.error("cluster %s %s", name, why)
        if self._requests is not None:
            _tell(self._requests, name)


def _tell(requests: int, word: str) -> None:
    os.write(requests, f"{word}\n".encode())


@write_transaction
def _ring(name: str, *, anew: bool = False) -> None:
    wakeups.ring(name, anew=anew)
