"""Due times the slow way: minute by minute through UTC, as Debian's cron lives through clock changes.

Shares nothing with the product but the meaning of a field. From cron(8): a clock that goes forward by less than
three hours runs the jobs of the time that was left out at once; one that goes back by less than three hours does not
run them again; jobs with `*` in hour or minute (here also with a step) go by the clock.
"""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
NAMES = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name} | {
    name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))
}


def numbers(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = (int(NAMES.get(part.upper(), part)) for part in span.split("-"))
        else:
            first = int(NAMES.get(span.upper(), span))
            last = high if step else first
        found |= set(range(first, last + 1, int(step or 1)))
    return found


class Walker:
    def __init__(self, expression: str, zone: str) -> None:
        minute, hour, day, month, weekday = expression.split()
        self.minutes, self.hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self.days, self.months = numbers(day, 1, 31), numbers(month, 1, 12)
        self.weekdays = {number % 7 for number in numbers(weekday, 0, 6 if weekday.startswith("*") else 7)}
        self.both = day.startswith("*") or weekday.startswith("*")
        self.by_clock = any(text.startswith("*") or "/" in text for text in (minute, hour))
        self.zone = ZoneInfo(zone)

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours or wall.month not in self.months:
            return False
        by_day, by_weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        return (by_day and by_weekday) if self.both else (by_day or by_weekday)

    def between(self, since: datetime, until: datetime) -> list[datetime]:
        """Due times later than `since`, through `until`; both full minutes."""
        found: list[datetime] = []
        # Far enough back to have seen what the clocks showed before a change.
        at = since - timedelta(hours=4)
        before = at.astimezone(self.zone).replace(tzinfo=None) - MINUTE
        newest = before
        while at <= until:
            wall = at.astimezone(self.zone).replace(tzinfo=None)
            due = self.matches(wall)
            if not self.by_clock:
                jump = wall - before
                if MINUTE < jump < timedelta(hours=3) + MINUTE:
                    left_out = before + MINUTE
                    while left_out < wall:
                        due = due or self.matches(left_out)
                        left_out += MINUTE
                elif wall <= newest:
                    due = False
            if due and at > since:
                found.append(at.astimezone(UTC))
            before, newest = wall, max(newest, wall)
            at += MINUTE
        return found
