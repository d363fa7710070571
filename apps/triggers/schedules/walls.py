"""What a cron rule matches on the wall clock, before any thought of time zones. Moments here are naive."""

from __future__ import annotations

import calendar
from bisect import bisect_left
from datetime import datetime, timedelta
from functools import lru_cache

from apps.triggers.schedules.cron import Cron

SECOND = timedelta(seconds=1)
# 29 February on one weekday comes every 28 years, and 40 where a century is left out.
HORIZON_YEARS = 41


@lru_cache(maxsize=8192)
def days(rule: Cron, year: int, month: int) -> tuple[int, ...]:
    """The days of a month on which the rule is due."""
    if month not in rule.month.values:
        return ()
    first, length = calendar.monthrange(year, month)
    # calendar counts from Monday = 0, cron from Sunday = 0.
    by_weekday = {day for day in range(1, length + 1) if (first + day) % 7 in rule.weekday.values}
    by_number = {day for day in rule.day.values if day <= length}
    return tuple(sorted(by_number | by_weekday if rule.either_day else by_number & by_weekday))


def following(rule: Cron, after: datetime) -> datetime | None:
    """The first match later than `after`; None where there is none for decades."""
    start = after.replace(microsecond=0) + SECOND
    year, month, day = start.year, start.month, start.day
    time = _time(rule, start.hour, start.minute, start.second)
    if time is not None and day in days(rule, year, month):
        return datetime(year, month, day, *time)
    last_year = min(year + HORIZON_YEARS, 9998)
    while year <= last_year:
        found = days(rule, year, month)
        index = bisect_left(found, day + 1)
        if index < len(found):
            second, minute, hour = rule.second.values, rule.minute.values, rule.hour.values
            return datetime(year, month, found[index], hour[0], minute[0], second[0])
        day, month = 0, month + 1
        if month > 12:
            year, month = year + 1, 1
    return None


def count(rule: Cron, after: datetime, until: datetime) -> int:
    """How many matches are later than `after` and not later than `until`, without walking them."""
    if until <= after:
        return 0
    return _up_to(rule, until, after.year) - _up_to(rule, after, after.year)


def _up_to(rule: Cron, at: datetime, year: int) -> int:
    """Matches from the begin of `year` through `at`."""
    whole = sum(
        len(days(rule, y, m))
        for y in range(year, at.year + 1)
        for m in range(1, at.month if y == at.year else 13)
    )
    found = days(rule, at.year, at.month)
    whole += bisect_left(found, at.day)
    number = whole * rule.per_day
    return number + (_in_day(rule, at) if at.day in found else 0)


def _in_day(rule: Cron, at: datetime) -> int:
    """Matches of a matching day through the time of `at`."""
    hours, minutes, seconds = rule.hour.values, rule.minute.values, rule.second.values
    hour = bisect_left(hours, at.hour)
    number = hour * len(minutes) * len(seconds)
    if hour < len(hours) and hours[hour] == at.hour:
        minute = bisect_left(minutes, at.minute)
        number += minute * len(seconds)
        if minute < len(minutes) and minutes[minute] == at.minute:
            number += bisect_left(seconds, at.second + 1)
    return number


def _time(rule: Cron, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
    """The first time of a matching day that is not before the given one."""
    hours, minutes, seconds = rule.hour.values, rule.minute.values, rule.second.values
    h = bisect_left(hours, hour)
    if h < len(hours) and hours[h] == hour:
        m = bisect_left(minutes, minute)
        if m < len(minutes) and minutes[m] == minute:
            s = bisect_left(seconds, second)
            if s < len(seconds):
                return hour, minute, seconds[s]
            m += 1
        if m < len(minutes):
            return hour, minutes[m], seconds[0]
        h += 1
    return (hours[h], minutes[0], seconds[0]) if h < len(hours) else None
