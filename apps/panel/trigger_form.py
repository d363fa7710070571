"""The schedule builder: texts of a page to the fields of a trigger and back, and what the rule means.

Its fields are named `t_…`, so that it can stand inside the task form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from apps.core.errors import InvalidInput
from apps.panel import form_values
from apps.triggers.drafts import TriggerDraft
from apps.triggers.errors import ScheduleInvalid
from apps.triggers.models import Misfire, Trigger
from apps.triggers.schedules.preview import Preview, preview

BY_HAND = "manual"
KINDS: tuple[tuple[str, Promise, Promise], ...] = (
    ("cron", pgettext_lazy("trigger choice", "On a schedule"), _("by a rule with minutes, hours and days")),
    ("interval", pgettext_lazy("trigger choice", "Every …"), _("again and again, so long apart")),
    ("once", pgettext_lazy("trigger choice", "Once at"), _("at one time, then never again")),
    ("boot", pgettext_lazy("trigger choice", "On start"), _("each time QingLong starts")),
    ("webhook", pgettext_lazy("trigger choice", "Webhook"), _("when a secret address is called")),
)
MANUAL: tuple[str, Promise, Promise] = (
    BY_HAND, pgettext_lazy("trigger choice", "By hand only"), _("when somebody runs it, or the API does"),
)  # fmt: skip
MISFIRES: tuple[tuple[str, Promise, Promise], ...] = (
    ("latest", pgettext_lazy("misfire", "Latest only"), _("one start for all that was missed")),
    ("skip", pgettext_lazy("misfire", "Skip"), _("what was missed is noted and not started")),
    ("all", pgettext_lazy("misfire", "All"), _("everything that was missed, up to a number")),
)
UNITS: tuple[tuple[str, int, Promise], ...] = (
    ("s", 1_000, pgettext_lazy("unit", "seconds")),
    ("min", 60_000, pgettext_lazy("unit", "minutes")),
    ("h", 3_600_000, pgettext_lazy("unit", "hours")),
    ("d", 86_400_000, pgettext_lazy("unit", "days")),
)
TEXTS = (
    "kind", "schedule", "timezone", "every", "unit", "at", "misfire", "catch_up", "grace", "jitter", "input", "signed",
)  # fmt: skip
# Where the form shows a field of the API; the rest have the same name.
_SHOWN_AT = {
    "every_ms": "every",
    "catch_up_max": "catch_up",
    "misfire_grace_ms": "grace",
    "jitter_ms": "jitter",
}
_WITH_TIME = {"cron", "interval", "once"}


@dataclass
class TriggerForm:
    """Texts by field, sentences by field, and where a rule that is not understood goes wrong."""

    values: dict[str, str]
    errors: dict[str, list[str | Promise]] = field(default_factory=dict)
    wrong: ScheduleInvalid | None = None

    @classmethod
    def blank(cls, kind: str = "cron") -> TriggerForm:
        """A trigger that does not exist yet."""
        return cls(_defaults() | {"kind": kind})

    @classmethod
    def of(cls, trigger: Trigger) -> TriggerForm:
        """A trigger as it is stored."""
        every, unit = _every(trigger.every_ms)
        values = {
            "kind": trigger.kind,
            "schedule": trigger.schedule or "",
            "timezone": trigger.timezone,
            "every": every,
            "unit": unit,
            "at": _local(trigger.at, trigger.timezone) if trigger.at else "",
            "misfire": trigger.misfire,
            "catch_up": str(trigger.catch_up_max),
            "grace": form_values.unscaled(trigger.misfire_grace_ms, 1000),
            "jitter": form_values.unscaled(trigger.jitter_ms, 1000),
            "input": json.dumps(trigger.input, ensure_ascii=False, indent=2) if trigger.input else "",
            "signed": "1" if trigger.signing_key_ref else "",
        }
        return cls(_defaults() | values)

    @classmethod
    def sent(cls, data: Mapping[str, str]) -> TriggerForm:
        """What came from the browser; a field that did not come has its default."""
        defaults = _defaults()
        return cls({name: data.get(f"t_{name}", defaults[name]).replace("\r\n", "\n") for name in TEXTS})

    @property
    def kind(self) -> str:
        return self.values["kind"]

    def draft(self) -> TriggerDraft | None:
        """The trigger, None for by hand only; raises InvalidInput with all that cannot even be read."""
        if self.kind == BY_HAND:
            return None
        return TriggerDraft(**{"kind": self.kind, **self.fields(), **self._signed()})

    def changes(self) -> dict[str, Any]:
        """The fields of a trigger that is there; raises as `draft`."""
        return self.fields()

    def fields(self) -> dict[str, Any]:
        """The fields of api.md that belong to the kind."""
        self.errors = {}
        found = {
            **self._time(),
            "misfire": self.values["misfire"] or None,
            "catch_up_max": self._whole("catch_up") if self.values["misfire"] == "all" else None,
            "misfire_grace_ms": self._scaled("grace", 1000),
            "jitter_ms": self._scaled("jitter", 1000),
            "input": self._input(),
        }
        if self.errors:
            raise InvalidInput(fields=self.errors)
        return found

    def look(self, *, viewer: str = "", count: int = 10) -> Preview | None:
        """What the rule means, or None with `errors` and `wrong` saying why not; nothing for by hand and webhook."""
        if self.kind not in _WITH_TIME:
            return None
        try:
            return preview(self.kind, **self._time(), count=count, viewer_timezone=_zone_name(viewer))
        except InvalidInput as refusal:
            self.refuse(refusal)
            return None

    def refuse(self, refusal: InvalidInput) -> None:
        """Takes over the sentences of a service, each to its field."""
        if isinstance(refusal, ScheduleInvalid):
            self.wrong = refusal
        found = {_SHOWN_AT.get(name, name): list(sentences) for name, sentences in refusal.fields.items()}
        self.errors |= {name if name in TEXTS else "kind": sentences for name, sentences in found.items()}
        if not self.errors:
            self.errors = {"kind": [refusal.detail]}

    def _signed(self) -> dict[str, Any]:
        return {"signed": self.values["signed"] == "1"} if self.kind == "webhook" else {}

    def _time(self) -> dict[str, Any]:
        zone = self.values["timezone"].strip() or None
        match self.kind:
            case "cron":
                return {"schedule": self.values["schedule"], "timezone": zone}
            case "interval":
                return {
                    "every_ms": self._scaled(
                        "every", {u: f for u, f, _word in UNITS}.get(self.values["unit"], 1000)
                    ),
                    "timezone": zone,
                }
            case "once":
                return {"at": self._moment(zone), "timezone": zone}
        return {}

    def _moment(self, zone: str | None) -> datetime | None:
        text = self.values["at"].strip()
        try:
            at = datetime.fromisoformat(text)
            return at if at.tzinfo else at.replace(tzinfo=ZoneInfo(zone or settings.TIME_ZONE))
        except (ValueError, ZoneInfoNotFoundError):
            self.errors["at"] = [_("A date and time are expected.")]
            return None

    def _input(self) -> dict[str, Any] | None:
        try:
            return form_values.json_object(self.values["input"])
        except ValueError:
            self.errors["input"] = [form_values.NO_OBJECT]
            return None

    def _scaled(self, name: str, factor: int) -> int | None:
        try:
            return form_values.scaled(self.values[name], factor)
        except ValueError:
            self.errors[name] = [form_values.NO_NUMBER]
            return None

    def _whole(self, name: str) -> int | None:
        return self._scaled(name, 1)


def _defaults() -> dict[str, str]:
    return dict.fromkeys(TEXTS, "") | {
        "kind": "cron", "timezone": timezone.get_current_timezone_name(), "every": "10", "unit": "min",
        "misfire": Misfire.LATEST.value, "catch_up": "10", "grace": "60", "jitter": "0", "signed": "",
    }  # fmt: skip


def _every(every_ms: int | None) -> tuple[str, str]:
    if every_ms is None:
        return "10", "min"
    for unit, factor, _word in reversed(UNITS):
        if every_ms % factor == 0:
            return str(every_ms // factor), unit
    return form_values.unscaled(every_ms, 1000), "s"


def _local(at: datetime, zone: str) -> str:
    """The wall clock's time as `datetime-local` has it."""
    return at.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M:%S")


def _zone_name(text: str) -> str:
    """The viewer's zone, the panel's where the browser's is not known."""
    try:
        return ZoneInfo(text[:64]).key if text else timezone.get_current_timezone_name()
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return timezone.get_current_timezone_name()
