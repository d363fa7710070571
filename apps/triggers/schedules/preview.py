"""What a rule will do, before it does it: next starts, the year's clock changes, warnings (lessons, idea 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from apps.core import clock
from apps.triggers import drafts
from apps.triggers.schedules import walls, words, zones
from apps.triggers.schedules.cron import MANUAL, Cron, parse
from apps.triggers.schedules.rules import CronRule, Rule, rule_of
from apps.triggers.schedules.zones import Change

MAX_COUNT = 100
# More often than once a minute is said aloud (lessons D3).
FREQUENT_PER_DAY = 1_440
# Changes by weekday lie up to 53 weeks apart.
_YEAR = timedelta(weeks=54)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Fire:
    """One start: the moment, by the clocks of the rule's zone and of the viewer's; `change` names what is special."""

    at: datetime
    local: datetime
    viewer: datetime
    change: str | None = None
    sentence: str = ""

    def document(self) -> dict[str, Any]:
        """The API's form."""
        return {
            "at": clock.rfc3339(self.at),
            "local": self.local.isoformat(timespec="seconds"),
            "viewer": self.viewer.isoformat(timespec="seconds"),
            "change": self.change,
            "sentence": self.sentence or None,
        }


@dataclass(frozen=True)
class ClockChange:
    """A change of the zone's clocks, and what becomes of the rule's times that it touches.

    `first` … `behind` are the times of the wall clock that are left out (`gap`) or come twice. `rule` is moved,
    skipped, once, twice or unaffected; `fires` is how many times of the rule are touched.
    """

    at: datetime
    gap: bool
    first: datetime
    behind: datetime
    before: timedelta
    to: timedelta
    fires: int
    rule: str
    sentence: str

    def document(self) -> dict[str, Any]:
        """The API's form."""
        return {
            "at": clock.rfc3339(self.at),
            "gap": self.gap,
            "first": self.first.isoformat(timespec="seconds"),
            "behind": self.behind.isoformat(timespec="seconds"),
            "offset_before_ms": self.before // timedelta(milliseconds=1),
            "offset_after_ms": self.to // timedelta(milliseconds=1),
            "fires": self.fires,
            "rule": self.rule,
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class Warning:
    """Something a person should know; `level` is warning or info."""

    code: str
    level: str
    sentence: str

    def document(self) -> dict[str, Any]:
        """The API's form."""
        return {"code": self.code, "level": self.level, "sentence": self.sentence}


@dataclass(frozen=True)
class Preview:
    """All of it; `runs_per_day` is the number on an ordinary day on which the rule is due."""

    kind: str
    schedule: str | None
    timezone: str
    words: str
    runs_per_day: float | None
    fires: list[Fire] = field(default_factory=list)
    clock_changes: list[ClockChange] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The API's answer."""
        return {
            "valid": True,
            "kind": self.kind,
            "schedule": self.schedule,
            "timezone": self.timezone,
            "words": self.words,
            "runs_per_day": self.runs_per_day,
            "next": [fire.document() for fire in self.fires],
            "clock_changes": [change.document() for change in self.clock_changes],
            "warnings": [warning.document() for warning in self.warnings],
        }


def preview(
    kind: str = "cron",
    *,
    schedule: str | None = None,
    timezone: str | None = None,
    every_ms: int | None = None,
    anchor_at: datetime | str | None = None,
    at: datetime | str | None = None,
    count: int = 10,
    viewer_timezone: str | None = None,
    now: datetime | None = None,
) -> Preview:
    """The next `count` (≤ 100) starts and what else is to be known. Raises InvalidInput and ScheduleInvalid."""
    draft = drafts.TriggerDraft(
        kind=kind, schedule=schedule, timezone=timezone, every_ms=every_ms, anchor_at=anchor_at, at=at
    )
    values = draft.cleaned()
    rule_like = SimpleNamespace(
        **{"schedule": None, "every_ms": None, "anchor_at": None, "at": None, "timezone": "UTC", **values}
    )
    tz = zones.zone(rule_like.timezone)
    viewer = zones.zone(viewer_timezone or settings.TIME_ZONE)
    now = now or clock.now()
    rule = rule_of(rule_like)
    cron_rule = rule if isinstance(rule, CronRule) else None
    per_day = _per_day(rule_like, cron_rule)
    return Preview(
        rule_like.kind,
        rule_like.schedule,
        rule_like.timezone,
        words.of(rule_like),
        per_day,
        list(_fires(rule, cron_rule, tz, viewer, now, min(count, MAX_COUNT))),
        [] if cron_rule is None else clock_changes(cron_rule, now),
        list(_warnings(rule_like, per_day)),
    )


def special(rule: Rule | None, due: datetime) -> str | None:
    """What a clock change does to a due time: moved, first_of_two, second_of_two or nothing."""
    if not isinstance(rule, CronRule):
        return None
    tz = rule.tz
    shown = zones.wall(due, zones.offset(due, tz))
    _at, _change, twice = zones.resolve(shown, tz)
    if twice:
        return "first_of_two" if _at == due else "second_of_two"
    edge = zones.change_between(tz, due - _SECOND, due)
    if (
        edge is not None
        and edge.gap
        and not rule.cron.by_clock
        and not walls.count(rule.cron, shown - _SECOND, shown)
    ):
        return "moved"
    return None


def special_sentence(rule: CronRule | None, change: str | None) -> str:
    """The same in words."""
    if rule is None or change is None:
        return ""
    if change == "moved":
        return _("The time is left out that night as the clocks go forward; it starts right behind the gap.")
    if rule.cron.by_clock:
        return _("The clocks go back and show this hour twice; the rule goes by the clock, so both count.")
    return _("The clocks go back and show this time twice; it starts once, the first time.")


def clock_changes(rule: CronRule, since: datetime) -> list[ClockChange]:
    """The two changes of the rule's zone that come next, within a year or so, and what they do to the rule."""
    found = zones.changes(rule.tz, since, since + _YEAR)
    return [_clock_change(rule, change) for change in islice(found, 2)]


def _clock_change(rule: CronRule, change: Change) -> ClockChange:
    first, behind = change.walls
    touched = walls.count(rule.cron, first - _SECOND, behind - _SECOND)
    values = {
        "number": touched, "first": f"{first:%H:%M}", "behind": f"{behind:%H:%M}", "day": f"{first:%Y-%m-%d}",
        "after": f"{zones.wall(change.at, change.to):%H:%M}",
    }  # fmt: skip
    if not touched:
        told = "unaffected"
        sentence = (
            _("On %(day)s the clocks go from %(first)s to %(behind)s; the rule has nothing to do there.")
            if change.gap
            else _(
                "On %(day)s the clocks go back from %(behind)s to %(first)s; the rule has nothing to do there."
            )
        ) % values
    elif change.gap and rule.cron.by_clock:
        told = "skipped"
        sentence = (
            ngettext(
                "On %(day)s the clocks go from %(first)s to %(behind)s: one time does not exist and is skipped.",
                "On %(day)s the clocks go from %(first)s to %(behind)s: %(number)d times do not exist and are skipped.",
                touched,
            )
            % values
        )
    elif change.gap:
        told = "moved"
        sentence = (
            ngettext(
                "On %(day)s the clocks go from %(first)s to %(behind)s: "
                "one time does not exist and starts at %(after)s.",
                "On %(day)s the clocks go from %(first)s to %(behind)s: %(number)d times do not exist; "
                "they start once, at %(after)s.",
                touched,
            )
            % values
        )
    elif rule.cron.by_clock:
        told = "twice"
        sentence = (
            ngettext(
                "On %(day)s the clocks go back from %(behind)s to %(first)s: one time comes twice and starts twice.",
                "On %(day)s the clocks go back from %(behind)s to %(first)s: "
                "%(number)d times come twice and start twice.",
                touched,
            )
            % values
        )
    else:
        told = "once"
        sentence = (
            ngettext(
                "On %(day)s the clocks go back from %(behind)s to %(first)s: one time comes twice and starts once.",
                "On %(day)s the clocks go back from %(behind)s to %(first)s: %(number)d times come twice "
                "and start once each.",
                touched,
            )
            % values
        )
    return ClockChange(
        change.at, change.gap, first, behind, change.before, change.to, touched, told, sentence
    )  # fmt: skip


def _fires(
    rule: Any, cron_rule: CronRule | None, tz: ZoneInfo, viewer: ZoneInfo, now: datetime, count: int
) -> Iterator[Fire]:
    at = rule.next(now)
    while at is not None and count > 0:
        change = special(cron_rule, at)
        yield Fire(
            at.astimezone(UTC),
            at.astimezone(tz),
            at.astimezone(viewer),
            change,
            special_sentence(cron_rule, change),
        )
        at, count = rule.next(at), count - 1


def _per_day(rule: Any, cron_rule: CronRule | None) -> float | None:
    if cron_rule is not None:
        return float(cron_rule.cron.per_day)
    return 86_400_000 / rule.every_ms if rule.kind == "interval" else None


def _warnings(rule: Any, per_day: float | None) -> Iterator[Warning]:
    if per_day is not None and per_day > FREQUENT_PER_DAY:
        yield Warning(
            "frequent", "warning", _("This starts %(number)s runs a day.") % {"number": f"{per_day:,.0f}"}
        )
    if rule.schedule == MANUAL:
        yield Warning("manual_only", "info", _("This never starts by itself."))
    elif rule.kind == "cron":
        yield from _cron_warnings(parse(rule.schedule))


def _cron_warnings(rule: Cron) -> Iterator[Warning]:
    if rule.either_day:
        yield Warning(
            "day_or_weekday",
            "warning",
            _("Day of the month and weekday are both given: it starts when either of them fits, not both."),
        )
    elif not (rule.day.free or rule.weekday.free):
        yield Warning(
            "day_and_weekday",
            "info",
            _("One of day and weekday begins with *: it starts only when both of them fit."),
        )
    if rule.six:
        yield Warning(
            "seconds_first",
            "info",
            _("Six fields are read with the seconds first; some programs read them last."),
        )
    for unit, size, text in (
        (rule.second, 60, pgettext("unit", "seconds")),
        (rule.minute, 60, pgettext("unit", "minutes")),
        (rule.hour, 24, pgettext("unit", "hours")),
    ):
        if unit.text.startswith("*/") and size % int(unit.text[2:] if unit.text[2:].isdigit() else 1):
            yield Warning(
                "uneven_step",
                "info",
                _(
                    "The step does not divide %(size)d %(unit)s: the last pause before it begins anew is shorter."
                )
                % {"size": size, "unit": text},
            )
