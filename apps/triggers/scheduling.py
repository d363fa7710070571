"""The scheduler's side of triggers: when to look, what a set clock means, the starts of `up` (architecture.md §2)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from apps.core import clock, node
from apps.core.db import write_transaction
from apps.dispatch import scheduler
from apps.runs.models import MissedCause
from apps.triggers import CHANNEL, queries
from apps.triggers.models import ClockJump
from apps.triggers.services.boots import arm_boot
from apps.triggers.services.firing import fire_due

# A wall clock that runs away from the steady one by more than this was set, or the machine slept.
JUMP = timedelta(seconds=2)
# Due times that lie closer together than this are settled in one pass.
PAUSE = timedelta(milliseconds=25)
ASIDE = timedelta(milliseconds=60)
_KEPT = timedelta(days=400)

logger = logging.getLogger("qinglong.triggers")


class Pulse:
    """What one scheduler process does about triggers; called at the time it asked for the last time."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._alive_since = clock.now()
        self._seen = (self._alive_since, steady())
        self._jump: tuple[datetime, datetime] | None = None
        self._armed: UUID | None = None

    def __call__(self, now: datetime) -> datetime | None:
        """Settles what is due and returns when to be called again; None where nothing is to come."""
        self._look_at_clock(now)
        if scheduler.boot_id is not None and self._armed != scheduler.boot_id:
            arm_boot(scheduler.boot_id)
            self._armed = scheduler.boot_id
        following, handled = queries.next_fire(), 0
        if following is not None and following <= clock.now():
            handled = fire_due(self._cause)
            following = queries.next_fire()
        if following is None:
            return None
        now = clock.now()
        if handled:
            return max(following, now + PAUSE)
        # Due, and others are at it: looked at again when they should be done.
        return following if following > now else now + ASIDE

    def _cause(self, due: datetime) -> str:
        if self._jump is not None and self._jump[0] <= due <= self._jump[1]:
            return MissedCause.CLOCK_JUMP
        return MissedCause.SCHEDULER_DOWN if due < self._alive_since else MissedCause.LATE

    def _look_at_clock(self, now: datetime) -> None:
        steady = self._steady()
        before, steady_before = self._seen
        self._seen = (now, steady)
        expected = before + timedelta(seconds=steady - steady_before)
        by = now - expected
        if abs(by) <= JUMP:
            return
        logger.warning("the clock was set by %+.1f s", by.total_seconds())
        if by > timedelta(0):
            self._jump = (expected, now)
        else:
            self._alive_since += by
        _remember(by, now)


@write_transaction
def _remember(by: timedelta, now: datetime) -> None:
    ClockJump.objects.create(node=node.node_id()[:64], by_ms=by // timedelta(milliseconds=1), created_at=now)
    ClockJump.objects.filter(created_at__lt=now - _KEPT).delete()


def register() -> None:
    """Has every scheduler process look after triggers."""
    scheduler.register_alarm("triggers", Pulse, CHANNEL)
