"""What a rule will do, before it does it: next starts, the year's clock changes, warnings (lessons, idea 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from apps.core import clock
from apps.triggers import drafts
from apps.triggers.schedules import words, zones
from apps.triggers.schedules.clock_changes import ClockChange, clock_changes, special, special_sentence
from apps.triggers.schedules.cron import MANUAL, Cron, parse
from apps.triggers.schedules.rules import CronRule, rule_of

MAX_COUNT = 100
# More often than once a minute is said aloud (lessons D3).
FREQUENT_PER_DAY = 1_440


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
