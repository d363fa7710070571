"""What is to happen with a due trigger, as pure rules: what starts, what was missed, what comes next.

A due time fires at `due + jitter`; the jitter follows from trigger and due time, so that every scheduler and
every reader works out the same. Due times are taken in order. One that fires later than the grace allows is a
misfire (api.md, "Trigger").
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from apps.core import clock
from apps.core.errors import DomainError
from apps.triggers.models import Misfire, Trigger
from apps.triggers.schedules import Rule, rule_of

# How many due times of one trigger are started in one pass; more wait for the next one, some milliseconds later.
MAX_STARTS = 100
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Span:
    """Due times that are not started: how many, the first and the last."""

    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True)
class Plan:
    """`starts` ascending; `next_due` is the first due time that is not settled by this plan."""

    starts: list[datetime] = field(default_factory=list)
    missed: list[Span] = field(default_factory=list)
    next_due: datetime | None = None


def jitter(trigger_id: UUID, due: datetime, jitter_ms: int) -> timedelta:
    """0 … `jitter_ms`, the same for everybody who asks."""
    if not jitter_ms:
        return timedelta(0)
    seed = hashlib.sha256(trigger_id.bytes + clock.to_ms(due).to_bytes(8, "big")).digest()
    return timedelta(milliseconds=int.from_bytes(seed[:8], "big") % (jitter_ms + 1))


def fires_at(trigger: Any, due: datetime) -> datetime:
    """When a due time is to be started."""
    return due + jitter(trigger.pk, due, trigger.jitter_ms)


def aim(trigger: Trigger, due: datetime | None) -> None:
    """Sets the next due time, and when the scheduler is to look."""
    trigger.due_at = due
    trigger.fire_at = None if due is None else fires_at(trigger, due)


def key(trigger_id: UUID, due: datetime) -> str:
    """The idempotency key of a due time's run: with it a due time starts once, whoever fires it."""
    return f"trigger:{trigger_id}:{clock.to_ms(due)}"


def plan(trigger: Trigger, rule: Rule, now: datetime) -> Plan:
    """For a trigger whose `fire_at` has come."""
    due = trigger.due_at
    assert due is not None
    if trigger.kind == "boot":
        return Plan([due])
    late = _late(trigger, rule, due, now)
    first = due if late is None else rule.next(late.last)
    on_time, next_due = _on_time(trigger, rule, first, now)
    if late is None:
        return Plan(on_time, [], next_due)
    caught_up = _caught_up(trigger, rule, late, bool(on_time))
    dropped = _without(rule, late, caught_up)
    return Plan([*caught_up, *on_time], [dropped] if dropped else [], next_due)


def span(rule: Rule, first: datetime, until: datetime) -> Span | None:
    """The due times from `first`, which is one, through `until`."""
    if until < first:
        return None
    count = 1 + rule.count(first, until)
    return Span(count, first, rule.latest(first, until)[-1] if count > 1 else first)


def completed(first: datetime | None, trigger: Any, now: datetime) -> dict[str, Any]:
    """What a record that a pause left open has to say by now; nothing where the rule is broken."""
    try:
        found = None if first is None else span(rule_of(trigger), first, now)
    except DomainError:
        return {}
    if found is None or found.count == 1:
        return {}
    return {"count": found.count, "last_scheduled_for": found.last}


def _late(trigger: Trigger, rule: Rule, due: datetime, now: datetime) -> Span | None:
    cut = now - timedelta(milliseconds=trigger.misfire_grace_ms)
    found = span(rule, due, cut - timedelta(milliseconds=trigger.jitter_ms) - _MS)
    count, last = (found.count, found.last) if found else (0, None)
    # Those that jitter may have put on either side of the limit, one by one.
    at = due if last is None else rule.next(last)
    while at is not None and at < cut and fires_at(trigger, at) < cut:
        count, last, at = count + 1, at, rule.next(at)
    return None if last is None else Span(count, due, last)


def _on_time(
    trigger: Trigger, rule: Rule, first: datetime | None, now: datetime
) -> tuple[list[datetime], datetime | None]:
    found: list[datetime] = []
    at = first
    while at is not None and len(found) < MAX_STARTS and fires_at(trigger, at) <= now:
        found.append(at)
        at = rule.next(at)
    return found, at


def _caught_up(trigger: Trigger, rule: Rule, late: Span, on_time: bool) -> list[datetime]:
    """Misfires that are started all the same; `latest` needs none where a start on time follows at once."""
    if trigger.misfire == Misfire.ALL:
        most = min(trigger.catch_up_max, late.count)
    else:
        most = int(trigger.misfire == Misfire.LATEST and not on_time)
    return rule.latest(late.first - _MS, late.last, most) if most else []


def _without(rule: Rule, late: Span, caught_up: list[datetime]) -> Span | None:
    """The misfires before those that are caught up."""
    count = late.count - len(caught_up)
    if not count:
        return None
    if not caught_up:
        return late
    return Span(count, late.first, rule.latest(late.first - _MS, caught_up[0] - _MS)[-1])
