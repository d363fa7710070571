"""What people send about a trigger, checked: a draft for a new one, changes for one that is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.core import canonical, clock
from apps.core.errors import InvalidInput
from apps.triggers.errors import ScheduleInvalid
from apps.triggers.models import (
    MAX_CATCH_UP,
    MAX_EVERY_MS,
    MAX_GRACE_MS,
    MAX_JITTER_MS,
    MIN_EVERY_MS,
    Kind,
    Misfire,
)
from apps.triggers.schedules import BOOT, MANUAL, parse, zone

MAX_INPUT = 65_536
# What each kind says about its time; all else of the rule stays empty.
OF_KIND = {
    Kind.CRON: ("schedule", "timezone"),
    Kind.INTERVAL: ("every_ms", "anchor_at", "timezone"),
    Kind.ONCE: ("at", "timezone"),
    Kind.BOOT: (),
    Kind.WEBHOOK: ("signed",),
}
RULE = ("schedule", "timezone", "every_ms", "anchor_at", "at")
POLICY = ("enabled", "misfire", "catch_up_max", "misfire_grace_ms", "jitter_ms", "input")
_NEEDED = {Kind.CRON: "schedule", Kind.INTERVAL: "every_ms", Kind.ONCE: "at"}


@dataclass(frozen=True, kw_only=True)
class TriggerDraft:
    """A trigger that does not exist yet, in the fields of api.md; None is the default of a field."""

    kind: str
    schedule: str | None = None
    timezone: str | None = None
    every_ms: int | None = None
    anchor_at: datetime | str | None = None
    at: datetime | str | None = None
    enabled: bool | None = None
    misfire: str | None = None
    catch_up_max: int | None = None
    misfire_grace_ms: int | None = None
    jitter_ms: int | None = None
    input: Mapping[str, Any] | None = field(default=None, repr=False)
    signed: bool | None = None

    @classmethod
    def from_json(cls, data: Any) -> TriggerDraft:
        """The draft of an API call; raises InvalidInput for no object, unknown fields and a missing kind."""
        if not isinstance(data, Mapping):
            raise InvalidInput(_("An object is expected."))
        known = {item.name for item in fields(cls)}
        wrong: dict[str, list[str | Promise]] = {
            str(name)[:64]: [_("There is no such field.")] for name in data if name not in known
        }
        if "kind" not in data:
            wrong["kind"] = [_("This field is required.")]
        if wrong:
            raise InvalidInput(fields=wrong)
        return cls(**data)

    def cleaned(self) -> dict[str, Any]:
        """All fields checked and with their defaults; raises InvalidInput and ScheduleInvalid."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        kind = given.pop("kind")
        if not isinstance(kind, str) or kind not in Kind.values:
            raise InvalidInput.field("kind", _("One of cron, interval, once, boot and webhook."))
        if kind == Kind.CRON and _is_boot(given["schedule"]):
            kind, given["schedule"], given["timezone"] = Kind.BOOT, None, None
        return {"kind": kind, **clean(kind, given)}


def clean(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Checked values, None replaced by defaults; raises InvalidInput with every wrong field, or ScheduleInvalid."""
    wrong: dict[str, list[str | Promise]] = {}
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in (*RULE, "signed") and name not in OF_KIND[Kind(kind)]:
            if value is not None and not (name == "signed" and value is False):
                wrong[name] = [_("A trigger of this kind has no such field.")]
            continue
        try:
            if value is None and _NEEDED.get(Kind(kind)) == name:
                raise InvalidInput.field(name, _("This field is required."))
            found[name] = _CHECKS[name](_DEFAULTS[name]() if value is None else value)
        except ScheduleInvalid:
            if not wrong:
                raise
        except InvalidInput as error:
            wrong[name] = [sentence for sentences in error.fields.values() for sentence in sentences]
    if wrong:
        raise InvalidInput(fields=wrong)
    return found


def _is_boot(schedule: Any) -> bool:
    return isinstance(schedule, str) and schedule.strip().lower() in (BOOT, "@reboot")


def _schedule(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput.field("schedule", _("Text."))
    if value.strip().lower() == MANUAL:
        return MANUAL
    parse(value)
    return " ".join(value.split())


def _timezone(value: Any) -> str:
    return zone(value).key


def _whole(name: str, low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidInput.field(
                name, _("A whole number from %(low)d to %(high)d.") % {"low": low, "high": high}
            )
        return value

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput.field("enabled", _("True or false."))
    return value


def _misfire(value: Any) -> str:
    if not isinstance(value, str) or value not in Misfire.values:
        raise InvalidInput.field("misfire", _("One of skip, latest and all."))
    return value


def _moment(value: Any) -> datetime:
    try:
        at = parse_datetime(value) if isinstance(value, str) else value
        if isinstance(at, datetime) and at.tzinfo is not None:
            at = at.astimezone(UTC)
            if 1970 <= at.year < 9990:
                return clock.from_ms(clock.to_ms(at))
    except (ValueError, OverflowError):
        pass
    raise InvalidInput.field("at", _("A time like 2026-11-29T18:05:03Z."))


def _input(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput.field("input", _("A JSON object."))
    try:
        canonical.dumps(value, max_bytes=MAX_INPUT)
    except canonical.NotCanonical as error:
        raise InvalidInput.field("input", _("Plain JSON of at most 64 KiB.")) from error
    return dict(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "schedule": _schedule,
    "timezone": _timezone,
    "every_ms": _whole("every_ms", MIN_EVERY_MS, MAX_EVERY_MS),
    "anchor_at": _moment,
    "at": _moment,
    "enabled": _flag,
    "misfire": _misfire,
    "catch_up_max": _whole("catch_up_max", 1, MAX_CATCH_UP),
    "misfire_grace_ms": _whole("misfire_grace_ms", 0, MAX_GRACE_MS),
    "jitter_ms": _whole("jitter_ms", 0, MAX_JITTER_MS),
    "input": _input,
    "signed": _flag,
}
_DEFAULTS: dict[str, Callable[[], Any]] = {
    "schedule": lambda: None,
    "timezone": lambda: settings.TIME_ZONE,
    "every_ms": lambda: None,
    "anchor_at": clock.now,
    "at": lambda: None,
    "enabled": lambda: True,
    "misfire": lambda: Misfire.LATEST.value,
    "catch_up_max": lambda: 1,
    "misfire_grace_ms": lambda: 60_000,
    "jitter_ms": lambda: 0,
    "input": dict,
    "signed": lambda: False,
}
