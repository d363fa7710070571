"""Cron rules, read strictly: what is not understood is refused, with the reason and the place (lessons D3).

Five fields, or six with leading seconds: `second minute hour day month weekday`. A field is `*`, a value, a range
`a-b`, each with an optional step `/n` (`a/n` runs from a to the end), or a list of these. Months and weekdays may
be named; Sunday is 0 or 7.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from django.utils.translation import gettext as _

from apps.triggers.errors import ScheduleInvalid

MAX_LENGTH = 255
MANUAL = "@once"
BOOT = "@boot"
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {name: number for number, name in enumerate(
    ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), start=1)}  # fmt: skip
_WEEKDAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_TOKEN = re.compile(r"[^ \t]+")
_PREFIX = re.compile(r"(?:CRON_)?TZ=", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """One kind of field: its bounds as people may write them, and its names."""

    key: str
    low: int
    high: int
    names: dict[str, int]


UNITS = (
    Unit("second", 0, 59, {}),
    Unit("minute", 0, 59, {}),
    Unit("hour", 0, 23, {}),
    Unit("day", 1, 31, {}),
    Unit("month", 1, 12, _MONTHS),
    Unit("weekday", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True)
class Field:
    """The values a field allows, ascending; `star` where it begins with `*`, `stepped` where it has a `/`."""

    text: str
    values: tuple[int, ...]
    star: bool
    stepped: bool

    @property
    def free(self) -> bool:
        """Whether it limits nothing."""
        return self.text == "*"


@dataclass(frozen=True, eq=False)
class Cron:
    """A rule that was understood. `text` has single spaces and no alias; `six` tells whether seconds were given."""

    text: str
    six: bool
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def by_clock(self) -> bool:
        """Whether clock changes are simply lived through: `*` or `/` in minute or hour (api.md, as Debian cron)."""
        return any(field.star or field.stepped for field in (self.minute, self.hour))

    @property
    def either_day(self) -> bool:
        """Whether a day matches by its number *or* by its weekday: both are limited, neither begins with `*`."""
        return not (self.day.star or self.weekday.star)

    @property
    def per_day(self) -> int:
        """How many due times an ordinary matching day has."""
        return len(self.second.values) * len(self.minute.values) * len(self.hour.values)


@lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """The rule of a text; aliases like `@daily` are understood, MANUAL and BOOT are for the caller.

    Raises ScheduleInvalid.
    """
    _check_text(text)
    tokens = [(found.group(), found.start()) for found in _TOKEN.finditer(text)]
    if not tokens:
        raise ScheduleInvalid(_("Give a schedule."), reason="empty")
    first, start = tokens[0]
    if first.startswith("@"):
        return _alias(first, start, len(tokens))
    if found := _PREFIX.match(first):
        raise ScheduleInvalid(
            _("The time zone has a field of its own; it does not belong into the schedule."),
            reason="zone_prefix", field=1, offset=start, length=found.end(),
        )  # fmt: skip
    _check_dialect(tokens)
    _check_number(tokens)
    six = len(tokens) == 6
    units = UNITS if six else UNITS[1:]
    fields = [
        _field(unit, token, offset, index)
        for index, (unit, (token, offset)) in enumerate(zip(units, tokens, strict=True), start=1)
    ]
    if not six:
        fields.insert(0, Field("0", (0,), star=False, stepped=False))
    rule = Cron(" ".join(token for token, _offset in tokens), six, *fields)
    _check_date_exists(rule, tokens, six)
    return rule


def _alias(name: str, offset: int, tokens: int) -> Cron:
    known = ALIASES.get(name.lower())
    if known is not None and tokens == 1:
        return parse(known)
    if name.lower() == "@every":
        sentence = _("For a fixed pause use a trigger of the kind interval.")
    else:
        sentence = _("Known are @yearly, @monthly, @weekly, @daily, @hourly, @boot and @once, each alone.")
    raise ScheduleInvalid(sentence, reason="alias_unknown", field=1, offset=offset, length=len(name))


def _check_text(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise ScheduleInvalid(
            _("At most %(most)d characters.") % {"most": MAX_LENGTH}, reason="too_long", offset=MAX_LENGTH
        )
    for offset, character in enumerate(text):
        if character != "\t" and not " " <= character <= "~":
            raise ScheduleInvalid(
                _("Only plain letters, digits and signs; this character is none of them."),
                reason="character", offset=offset, length=1,
            )  # fmt: skip


def _check_dialect(tokens: list[tuple[str, int]]) -> None:
    """Signs of other dialects first: they say more than a wrong number of fields."""
    signs = {
        "?": ("question_mark", _("“?” belongs to Quartz; write * instead.")),
        "#": ("nth_weekday", _("“#” (the n-th weekday of a month) is not understood.")),
        "~": ("random", _("“~” (a random value) is not understood; use the jitter of the trigger.")),
        "%": ("percent", _("“%” belongs to crontab lines with a command; only the times belong here.")),
    }
    for index, (token, start) in enumerate(tokens, start=1):
        for sign, (reason, sentence) in signs.items():
            if sign in token:
                raise ScheduleInvalid(
                    sentence, reason=reason, field=index, offset=start + token.index(sign), length=1
                )


def _check_number(tokens: list[tuple[str, int]]) -> None:
    last, offset = tokens[-1]
    place = {"field": len(tokens), "offset": offset, "length": len(last)}
    if len(tokens) == 7 or (len(tokens) == 6 and re.fullmatch(r"(19|20)\d\d([-,/].*)?", last)):
        raise ScheduleInvalid(_("A field for the year is not understood."), reason="year_field", **place)
    if len(tokens) > 7:
        raise ScheduleInvalid(
            _("A schedule has five fields, or six with seconds first; these are %(number)d.")
            % {"number": len(tokens)},
            reason="too_many_fields", **place,
        )  # fmt: skip
    if len(tokens) < 5:
        raise ScheduleInvalid(
            _("A schedule has five fields (minute, hour, day, month, weekday), or six with seconds first; "
              "there is only %(number)d.") % {"number": len(tokens)}
            if len(tokens) == 1
            else _("A schedule has five fields (minute, hour, day, month, weekday), or six with seconds first; "
                   "these are %(number)d.") % {"number": len(tokens)},
            reason="too_few_fields", field=len(tokens), offset=offset + len(last),
        )  # fmt: skip


def _field(unit: Unit, token: str, offset: int, index: int) -> Field:
    values: set[int] = set()
    position = offset
    for item in token.split(","):
        values.update(_item(unit, item, position, index))
        position += len(item) + 1
    if unit.key == "weekday":
        values = {value % 7 for value in values}
    return Field(token, tuple(sorted(values)), star=token.startswith("*"), stepped="/" in token)


def _item(unit: Unit, item: str, offset: int, index: int) -> range:
    def refuse(reason: str, sentence: str, at: int = 0, length: int | None = None) -> ScheduleInvalid:
        width = len(item) if length is None else length
        return ScheduleInvalid(sentence, reason=reason, field=index, offset=offset + at, length=width)

    if not item:
        raise refuse("empty_item", _("There is a comma with nothing beside it."))
    span, slash, step_text = item.partition("/")
    if slash and not span:
        raise refuse("bare_step", _("Before the “/” belongs a * or a range, for example */5."))
    low, dash, high = span.partition("-")
    if span == "*":
        first, last = unit.low, unit.high - (unit.key == "weekday")
    else:
        first = _value(unit, low, offset, index)
        last = first
        if dash:
            last = _value(unit, high, offset + len(low) + 1, index)
            if last == 0 and first > 0 and not high.isdigit():
                last = 7  # FRI-SUN
        elif slash:
            last = unit.high - (unit.key == "weekday")
    if last < first:
        raise refuse(
            "reversed", _("The range runs backwards; the smaller value comes first."), length=len(span)
        )
    if not slash:
        return range(first, last + 1)
    at = len(span) + 1
    if not re.fullmatch(r"[0-9]{1,4}", step_text):
        raise refuse("step", _("After the “/” belongs a whole number."), at, len(step_text))
    step = int(step_text)
    if step == 0:
        raise refuse("step_zero", _("A step is at least 1."), at, len(step_text))
    if step > unit.high - unit.low:
        sentence = _("A step of %(step)d does not fit into a field from %(low)d to %(high)d.") % {
            "step": step, "low": unit.low, "high": unit.high
        }  # fmt: skip
        raise refuse("step_too_large", sentence, at, len(step_text))
    return range(first, last + 1, step)


def _value(unit: Unit, text: str, offset: int, index: int) -> int:
    def refuse(reason: str, sentence: str) -> ScheduleInvalid:
        return ScheduleInvalid(sentence, reason=reason, field=index, offset=offset, length=len(text))

    upper = text.upper()
    if upper in unit.names:
        return unit.names[upper]
    if re.fullmatch(r"[0-9]{1,6}", text):
        value = int(text)
        if not unit.low <= value <= unit.high:
            sentence = _("%(value)s is not from %(low)d to %(high)d, as this field demands.") % {
                "value": text, "low": unit.low, "high": unit.high
            }  # fmt: skip
            raise refuse("out_of_range", sentence)
        return value
    if not text:
        raise refuse("value_missing", _("A value is missing here."))
    if re.fullmatch(r"\d*L(-\d+)?|LW|[A-Z]{3}L", upper):
        raise refuse("last", _("“L” (the last day or weekday of a month) is not understood."))
    if re.fullmatch(r"\d*W", upper):
        raise refuse("nearest_weekday", _("“W” (the nearest working day) is not understood."))
    if upper.startswith("H"):
        raise refuse(
            "hash", _("“H” (a value chosen by Jenkins) is not understood; use the jitter of the trigger.")
        )
    if "*" in text:
        raise refuse("star", _("A * stands alone or with a step, like */5."))
    raise refuse("value", _("“%(text)s” is no value of this field.") % {"text": text[:20]})


def _check_date_exists(rule: Cron, tokens: list[tuple[str, int]], six: bool) -> None:
    if rule.either_day:
        return
    longest = max(29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31 for month in rule.month.values)
    if rule.day.values[0] > longest:
        token, offset = tokens[3 if six else 2]
        raise ScheduleInvalid(
            _("There is no such day in these months: it would never start."),
            reason="never", field=4 if six else 3, offset=offset, length=len(token),
        )  # fmt: skip
