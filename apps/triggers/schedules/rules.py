"""Due times of every kind of rule. Moments are aware and in UTC; "later" and "after" are strict.

Clock changes follow Debian cron (api.md, "Trigger"): a fixed time that is left out is due once right behind the
gap, one that comes twice is due once, the first time; a rule with `*` or `/` in minute or hour goes by the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from apps.triggers.schedules import walls, zones
from apps.triggers.schedules.cron import MANUAL, Cron, parse
from apps.triggers.schedules.zones import Change

_SECOND = timedelta(seconds=1)
# Longer than any clock change, so that one step looks over its edge.
_WINDOW = timedelta(hours=4)


class Rule(Protocol):
    """When something is due."""

    def next(self, after: datetime) -> datetime | None:
        """The first due time later than `after`; None where none is to come."""
        ...

    def count(self, after: datetime, until: datetime) -> int:
        """How many due times are later than `after` and not later than `until`, without walking them."""
        ...

    def latest(self, after: datetime, until: datetime, most: int = 1) -> list[datetime]:
        """The last `most` due times of the same span, ascending."""
        ...


def between(rule: Rule, after: datetime, until: datetime) -> Iterator[datetime]:
    """The due times later than `after` and not later than `until`, ascending; may be very many."""
    at = rule.next(after)
    while at is not None and at <= until:
        yield at
        at = rule.next(at)


class NeverRule:
    """Never due by itself: webhooks, starts of the system, starts by hand."""

    def next(self, after: datetime) -> datetime | None:
        """Nothing."""
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """None."""
        return 0

    def latest(self, after: datetime, until: datetime, most: int = 1) -> list[datetime]:
        """Nothing."""
        return []


class OnceRule:
    """Due at one moment."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def next(self, after: datetime) -> datetime | None:
        """The moment, while it is to come."""
        return self.at if after < self.at else None

    def count(self, after: datetime, until: datetime) -> int:
        """1 or 0."""
        return int(after < self.at <= until)

    def latest(self, after: datetime, until: datetime, most: int = 1) -> list[datetime]:
        """The moment, if it is in the span."""
        return [self.at] if after < self.at <= until else []


class IntervalRule:
    """Due at `anchor` and every `every` from there, whatever clocks are set to and whenever it was late."""

    def __init__(self, anchor: datetime, every_ms: int) -> None:
        self.anchor = anchor
        self.every = timedelta(milliseconds=every_ms)

    def _number(self, at: datetime) -> int:
        """How many due times are not later than `at`."""
        return max(0, (at - self.anchor) // self.every + 1)

    def next(self, after: datetime) -> datetime | None:
        """On the grid of the anchor."""
        try:
            return self.anchor + self._number(after) * self.every
        except OverflowError:
            return None

    def count(self, after: datetime, until: datetime) -> int:
        """By division."""
        return max(0, self._number(until) - self._number(after))

    def latest(self, after: datetime, until: datetime, most: int = 1) -> list[datetime]:
        """By division."""
        last = self._number(until)
        first = max(self._number(after), last - most)
        return [self.anchor + number * self.every for number in range(first, last)]


class CronRule:
    """A cron rule in a time zone."""

    def __init__(self, cron: Cron, tz: ZoneInfo) -> None:
        self.cron = cron
        self.tz = tz

    def next(self, after: datetime) -> datetime | None:
        """See the head of this module."""
        return self._by_clock(after) if self.cron.by_clock else self._fixed(after)

    def count(self, after: datetime, until: datetime) -> int:
        """From one clock change to the next by arithmetic; the changes themselves are settled one by one."""
        if until <= after:
            return 0
        found = list(zones.changes(self.tz, after - zones.LONGEST_CHANGE, until))
        number, start = 0, zones.wall(after, zones.offset(after, self.tz))
        for change in found:
            if change.at > after:
                number += walls.count(self.cron, start, zones.wall(change.at, change.before) - _SECOND)
                start = zones.wall(change.at, change.to) - _SECOND
            if not self.cron.by_clock:
                number += self._settled(change, after, until)
        return number + walls.count(self.cron, start, zones.wall(until, zones.offset(until, self.tz)))

    def latest(self, after: datetime, until: datetime, most: int = 1) -> list[datetime]:
        """Looks at ever longer spans before `until`, so that it never walks much more than it returns."""
        length = timedelta(minutes=1)
        start = max(after, until - length)
        while start > after and self.count(start, until) < most:
            length *= 2
            start = max(after, until - length)
        return list(between(self, start, until))[-most:]

    def _fixed(self, after: datetime) -> datetime | None:
        shown: datetime | None = zones.wall(after, zones.offset(after, self.tz))
        while shown is not None:
            shown = walls.following(self.cron, shown)
            if shown is not None:
                at, change, _twice = zones.resolve(shown, self.tz)
                if at > after and (change is None or _followed(change)):
                    return at
        return None

    def _by_clock(self, after: datetime) -> datetime | None:
        at, included = after, timedelta(0)
        while True:
            ahead = zones.offset(at, self.tz)
            shown = walls.following(self.cron, zones.wall(at, ahead) - included)
            if shown is None:
                return None
            found = zones.moment(shown, ahead)
            edge = zones.change_between(self.tz, at, at + _WINDOW)
            if edge is None or found < edge.at:
                if found - at <= _WINDOW:
                    return found
                found, edge, _twice = zones.resolve(shown, self.tz)
                if edge is None:
                    return found
            # The clocks are set before it comes to that: look on from there, the moment of the change included.
            at, included = edge.at, _SECOND

    def _settled(self, change: Change, after: datetime, until: datetime) -> int:
        """What a change adds to or takes from the due times of (after, until] of a fixed rule."""
        first, behind = change.walls
        if change.gap:
            if not after < change.at <= until or not _followed(change):
                return 0
            shown = zones.wall(change.at, change.to)
            left_out = walls.count(self.cron, first - _SECOND, behind - _SECOND) > 0
            return int(left_out and not walls.count(self.cron, shown - _SECOND, shown))
        # Second showings that lie in the span are not due again.
        shown_from = max(first - _SECOND, zones.wall(after, change.to))
        return -walls.count(self.cron, shown_from, min(behind - _SECOND, zones.wall(until, change.to)))


def _followed(change: Change) -> bool:
    return change.to - change.before < zones.LONGEST_CHANGE


@lru_cache(maxsize=4096)
def cron_rule(schedule: str, timezone: str) -> Rule:
    """The rule of a schedule in a zone; raises ScheduleInvalid and InvalidInput."""
    return NeverRule() if schedule == MANUAL else CronRule(parse(schedule), zones.zone(timezone))


def rule_of(trigger: Any) -> Rule:
    """The rule of a trigger, or of a revision of one; raises ScheduleInvalid and InvalidInput."""
    if trigger.kind == "cron":
        return cron_rule(trigger.schedule, trigger.timezone)
    if trigger.kind == "interval":
        return IntervalRule(trigger.anchor_at, trigger.every_ms)
    if trigger.kind == "once":
        return OnceRule(trigger.at)
    return NeverRule()


def in_zone(at: datetime, tz: ZoneInfo) -> str:
    """`2026-03-29T03:00:00.000+02:00`: a moment as the zone's clocks show it."""
    return at.astimezone(tz).isoformat(timespec="milliseconds")
