"""Entry points of the control cluster for approvals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django.conf import settings

from apps.approvals import admitting, due, receipts
from apps.approvals.cycle import PROFILES, Cycle
from apps.approvals.services import asking, sweeping
from apps.approvals.services.consuming import EXECUTE
from apps.approvals.services.deciding import CONSUME
from apps.approvals.services.sweeping import Position
from apps.core import clock, control, participants, wakeups
from apps.core.db import write_transaction
from apps.core.jobs import CONTROL
from apps.dispatch import scheduler
from apps.runs.services import door, holds
from apps.triggers import asking as triggers

LAPSE = "approvals.lapse"
ASK = "approvals.ask"
_PAGES = 8


def consume(_cursor: control.Cursor) -> control.Cursor | None:
    """Hands approved requests over, a few bounded pages; whoever approved one made this due at once."""
    after = sweeping.consume_page()
    for _ in range(_PAGES - 1):
        if after is None:
            break
        after = sweeping.consume_page(after)
    return None


def lapse(cursor: control.Cursor) -> control.Cursor | None:
    """Writes down what expired since last time and what changed under open requests, a few bounded pages of each."""
    expired, live = _read(cursor.get("expired")), _read(cursor.get("live"))
    for _ in range(_PAGES):
        expired, more = sweeping.expire_page(expired)
        if not more:
            break
    for _ in range(_PAGES):
        live = sweeping.void_page(live)
        if live is None:
            break
    return {"expired": _write(expired), "live": _write(live)}


@cache
def cycle() -> Cycle:
    """The cycle of this process."""
    return Cycle(PROFILES[settings.PROFILE])


def execute(_cursor: control.Cursor) -> control.Cursor | None:
    """One cycle; what it came to is kept for whoever watches (`health`), never where it left off."""
    return cycle().run()


def look(now: datetime) -> None:
    """Makes the cycle due where there is something to do; the scheduler calls it."""
    if due.anything(now):
        _call()


@write_transaction
def _call() -> None:
    control.soon(EXECUTE)
    wakeups.ring(CONTROL)


def ask(_cursor: control.Cursor) -> control.Cursor | None:
    """Files the requests of due times, a few bounded pages; whoever left a record made this due at once."""
    for _ in range(_PAGES):
        if not asking.file_due_page():
            break
    return None


def ask_soon(_skip_ids: Sequence[Any]) -> None:
    """Inside the transaction that left records."""
    control.soon(ASK)
    wakeups.ring(CONTROL)


def _read(value: Any) -> Position | None:
    return None if value is None else (clock.from_ms(value[0]), str(value[1]))


def _write(position: Position | None) -> list[Any] | None:
    return None if position is None else [clock.to_ms(position[0]), position[1]]


def register() -> None:
    """Makes the jobs known, who still needs a run whole, who knows approvals at the door, and who asks for triggers."""
    control.register(ASK, ask, every_ms=30_000)
    participants.register(door.ASKED, ask_soon)
    door.register(admitting.consumed_for)
    triggers.register(asking.file_firing)
    control.register(CONSUME, consume, every_ms=30_000)
    control.register(EXECUTE, execute, every_ms=30_000)
    scheduler.register("approvals", look, PROFILES[settings.PROFILE].interval_s)
    holds.register("approvals", receipts.still_needed)
    control.register(LAPSE, lapse, every_ms=30_000)
