"""What changes of a zone's clocks do to a rule: which times are moved, skipped, or come twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.core import clock
from apps.triggers.schedules import walls, zones
from apps.triggers.schedules.rules import CronRule, Rule
from apps.triggers.schedules.zones import Change

# Changes by weekday lie up to 53 weeks apart.
_YEAR = timedelta(weeks=54)
_SECOND = timedelta(seconds=1)


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
    if not touched:
        told = "unaffected"
    elif change.gap:
        told = "skipped" if rule.cron.by_clock else "moved"
    else:
        told = "twice" if rule.cron.by_clock else "once"
    sentence = _sentence(told, change.gap, touched) % {
        "number": touched, "first": f"{first:%H:%M}", "behind": f"{behind:%H:%M}", "day": f"{first:%Y-%m-%d}",
        "after": f"{zones.wall(change.at, change.to):%H:%M}",
    }  # fmt: skip
    return ClockChange(
        change.at, change.gap, first, behind, change.before, change.to, touched, told, sentence
    )


def _sentence(told: str, gap: bool, number: int) -> str:
    if told == "unaffected":
        return (
            _("On %(day)s the clocks go from %(first)s to %(behind)s; the rule has nothing to do there.")
            if gap
            else _(
                "On %(day)s the clocks go back from %(behind)s to %(first)s; the rule has nothing to do there."
            )
        )
    return {
        "skipped": ngettext(
            "On %(day)s the clocks go from %(first)s to %(behind)s: one time does not exist and is skipped.",
            "On %(day)s the clocks go from %(first)s to %(behind)s: %(number)d times do not exist and are skipped.",
            number,
        ),
        "moved": ngettext(
            "On %(day)s the clocks go from %(first)s to %(behind)s: "
            "one time does not exist and starts at %(after)s.",
            "On %(day)s the clocks go from %(first)s to %(behind)s: %(number)d times do not exist; "
            "they start once, at %(after)s.",
            number,
        ),
        "twice": ngettext(
            "On %(day)s the clocks go back from %(behind)s to %(first)s: one time comes twice and starts twice.",
            "On %(day)s the clocks go back from %(behind)s to %(first)s: %(number)d times come twice "
            "and start twice.",
            number,
        ),
        "once": ngettext(
            "On %(day)s the clocks go back from %(behind)s to %(first)s: one time comes twice and starts once.",
            "On %(day)s the clocks go back from %(behind)s to %(first)s: %(number)d times come twice "
            "and start once each.",
            number,
        ),
    }[told]
