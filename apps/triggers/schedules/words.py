"""A rule as one sentence. Parts are put together by translated patterns, so that each language keeps its order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import npgettext, pgettext

from apps.core.errors import DomainError
from apps.triggers.schedules import zones
from apps.triggers.schedules.cron import MANUAL, Cron, parse

# More times of day than this are told as a pattern.
MAX_TIMES = 4
_UNITS_MS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def of(trigger: Any) -> str:
    """The rule of a trigger or of a revision; one that is broken is shown as it is."""
    try:
        return _of(trigger)
    except DomainError:
        return str(trigger.schedule or trigger.timezone)


def _of(trigger: Any) -> str:
    kind = trigger.kind
    if kind == "cron":
        return cron(trigger.schedule)
    if kind == "interval":
        return _sentence(every(trigger.every_ms))
    if kind == "once":
        return once(trigger.at, trigger.timezone)
    return _("Each time the system is started") if kind == "boot" else _("When its address is called")


def cron(schedule: str) -> str:
    """The sentence of a schedule."""
    if schedule == MANUAL:
        return _("Only by hand")
    rule = parse(schedule)
    time, days = _time(rule), _days(rule)
    return _sentence(
        pgettext("schedule", "%(time)s, %(days)s") % {"time": time, "days": days} if days else time
    )


def once(at: datetime, timezone: str) -> str:
    """The sentence of a single start, by the clocks of the zone."""
    shown = at.astimezone(zones.zone(timezone))
    text = shown.strftime("%Y-%m-%d %H:%M:%S" if shown.second else "%Y-%m-%d %H:%M")
    return _("Once, on %(at)s") % {"at": text}


def every(ms: int) -> str:
    """`every 5 minutes`: the largest unit that fits without a rest."""
    for unit, size in _UNITS_MS:
        if ms % size == 0:
            return _every(unit, ms // size)
    return pgettext("schedule", "every %(number)d ms") % {"number": ms}


def listing(values: Sequence[Any], name: Callable[[Any], str] = str) -> str:
    """`1, 5–8 and 20`: neighbours as ranges, long even steps with dots."""
    steps = {b - a for a, b in itertools.pairwise(values)}
    if len(values) > 4 and len(steps) == 1 and steps != {1}:
        first, second, last = name(values[0]), name(values[1]), name(values[-1])
        return pgettext("list", "%(first)s, %(second)s, … %(last)s") % {
            "first": first, "second": second, "last": last
        }  # fmt: skip
    to = (
        pgettext("weekdays", "%(first)s to %(last)s")
        if name is _weekday
        else pgettext("list", "%(first)s to %(last)s")
    )
    parts = [name(a) if a == b else to % {"first": name(a), "last": name(b)} for a, b in _runs(values)]
    if len(parts) == 1:
        return parts[0]
    return pgettext("list", "%(most)s and %(last)s") % {
        "most": pgettext("list", ", ").join(parts[:-1]),
        "last": parts[-1],
    }


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    # Two neighbours are no range.
    return [pair for a, b in runs for pair in ([(a, a), (b, b)] if b == a + 1 else [(a, b)])]


def _every(unit: str, number: int) -> str:
    if number == 1:
        return {
            "second": pgettext("schedule", "every second"),
            "minute": pgettext("schedule", "every minute"),
            "hour": pgettext("schedule", "every hour"),
            "day": pgettext("schedule", "every day"),
        }[unit]
    return {
        "second": npgettext("schedule", "every %(number)d second", "every %(number)d seconds", number),
        "minute": npgettext("schedule", "every %(number)d minute", "every %(number)d minutes", number),
        "hour": npgettext("schedule", "every %(number)d hour", "every %(number)d hours", number),
        "day": npgettext("schedule", "every %(number)d day", "every %(number)d days", number),
    }[unit] % {"number": number}


def _step(values: Sequence[int], size: int) -> int | None:
    """n where the values are 0, n, 2n … all around a clock face of that size."""
    step = size // len(values)
    return (
        step
        if len(values) > 1 and tuple(values) == tuple(range(0, size, step)) and size % step == 0
        else None
    )


def _time(rule: Cron) -> str:
    seconds, minutes, hours = rule.second.values, rule.minute.values, rule.hour.values
    if len(seconds) == 1 and len(minutes) * len(hours) <= MAX_TIMES:
        form = "{:02}:{:02}:{:02}" if seconds[0] else "{:02}:{:02}"
        times = [form.format(hour, minute, seconds[0]) for hour in hours for minute in minutes]
        joined = pgettext("list", ", ").join(times[:-1])
        if joined:
            times = [pgettext("list", "%(most)s and %(last)s") % {"most": joined, "last": times[-1]}]
        return pgettext("schedule", "at %(times)s") % {"times": times[0]}
    text = _minutes_of_hours(rule)
    if seconds == (0,):
        return text
    if len(seconds) == 60 or (len(seconds) > 1 and _step(seconds, 60)):
        told = _every("second", _step(seconds, 60) or 1)
    elif len(seconds) == 1:
        told = pgettext("schedule", "at second %(number)d") % {"number": seconds[0]}
    else:
        told = pgettext("schedule", "at the seconds %(list)s") % {"list": listing(seconds)}
    if len(seconds) > 1 and len(minutes) == 60 and len(hours) == 24:
        return told if _step(seconds, 60) else _inside(told, text)
    if len(seconds) > 1 and len(minutes) == 60:
        return _inside(told, _hours(hours) or "")
    return _inside(told, text)


def _inside(small: str, large: str) -> str:
    return pgettext("schedule", "%(small)s, %(large)s") % {"small": small, "large": large}


def _minutes_of_hours(rule: Cron) -> str:
    minutes, hours = rule.minute.values, rule.hour.values
    step = _step(hours, 24)
    if len(minutes) == 1 and step:
        if minutes[0] == 0:
            return pgettext("schedule", "%(hours)s on the hour") % {"hours": _every("hour", step)}
        return pgettext("schedule", "%(hours)s at minute %(number)d") % {
            "hours": _every("hour", step), "number": minutes[0]
        }  # fmt: skip
    if len(minutes) == 1 and len(hours) > MAX_TIMES and len(hours) == hours[-1] - hours[0] + 1:
        return pgettext("schedule", "every hour from %(first)s to %(last)s") % {
            "first": f"{hours[0]:02}:{minutes[0]:02}", "last": f"{hours[-1]:02}:{minutes[0]:02}"
        }  # fmt: skip
    if len(minutes) == 60:
        told = _every("minute", 1)
    elif every_n := _step(minutes, 60):
        told = _every("minute", every_n)
    elif len(minutes) == 1:
        told = pgettext("schedule", "at minute %(number)d") % {"number": minutes[0]}
    else:
        told = pgettext("schedule", "at the minutes %(list)s") % {"list": listing(minutes)}
    within = _hours(hours)
    if within is None:
        return told if _step(minutes, 60) else _inside(told, _every("hour", 1))
    return _inside(told, within)


def _hours(hours: Sequence[int]) -> str | None:
    """None for all of them."""
    if len(hours) == 24:
        return None
    if len(hours) == hours[-1] - hours[0] + 1:
        return pgettext("schedule", "from %(first)s to %(last)s") % {
            "first": f"{hours[0]:02}:00", "last": f"{hours[-1]:02}:59"
        }  # fmt: skip
    return pgettext("schedule", "in the hours %(list)s") % {"list": listing(hours)}


def _days(rule: Cron) -> str:
    """Days and months; empty where every day is meant and the time says so itself."""
    numbers = None if len(rule.day.values) == 31 else listing(rule.day.values)
    weekdays = None if len(rule.weekday.values) == 7 else _weekdays(rule.weekday.values)
    months = None if len(rule.month.values) == 12 else listing(rule.month.values, _month)
    values = {"days": numbers, "weekdays": weekdays, "months": months}
    many = len(rule.day.values)
    if numbers and weekdays:
        text = (
            npgettext(
                "schedule",
                "on day %(days)s of the month or on %(weekdays)s",
                "on the days %(days)s of the month or on %(weekdays)s",
                many,
            )
            if rule.either_day
            else npgettext(
                "schedule",
                "on day %(days)s of the month if it is %(weekdays)s",
                "on the days %(days)s of the month if they are %(weekdays)s",
                many,
            )
        ) % values
    elif numbers and months:
        return (
            npgettext("schedule", "on day %(days)s of %(months)s", "on the days %(days)s of %(months)s", many)
            % values
        )
    elif numbers:
        return (
            npgettext(
                "schedule", "on day %(days)s of every month", "on the days %(days)s of every month", many
            )
            % values
        )
    elif weekdays and not rule.either_day:
        text = pgettext("schedule", "on %(weekdays)s") % values
    else:
        # Either every day, or one of two limits that lets every day pass.
        text = "" if _step(rule.hour.values, 24) else _every("day", 1)
    if not months:
        return text
    within = pgettext("schedule", "in %(months)s") % values
    return pgettext("schedule", "%(days)s, %(months)s") % {"days": text, "months": within} if text else within


def _weekdays(values: Sequence[int]) -> str:
    """From Monday on, as people count a week."""
    return listing(sorted(value or 7 for value in values), _weekday)


def _weekday(number: int) -> str:
    names = (
        pgettext("weekday", "Monday"), pgettext("weekday", "Tuesday"), pgettext("weekday", "Wednesday"),
        pgettext("weekday", "Thursday"), pgettext("weekday", "Friday"), pgettext("weekday", "Saturday"),
        pgettext("weekday", "Sunday"),
    )  # fmt: skip
    return names[number - 1]


def _month(number: int) -> str:
    names = (
        pgettext("month", "January"), pgettext("month", "February"), pgettext("month", "March"),
        pgettext("month", "April"), pgettext("month", "May"), pgettext("month", "June"),
        pgettext("month", "July"), pgettext("month", "August"), pgettext("month", "September"),
        pgettext("month", "October"), pgettext("month", "November"), pgettext("month", "December"),
    )  # fmt: skip
    return names[number - 1]
