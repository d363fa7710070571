"""The part "Retry" of the task form: the rule of a task as texts, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from apps.panel import form_values
from apps.tasks.retry import RetryRule

LABELS: tuple[tuple[str, Promise], ...] = (
    ("retry_attempts", _("Attempts in all")),
    ("retry_wait", _("Wait before the next attempt, in seconds")),
    ("retry_longest", _("Longest wait, in seconds")),
    ("retry_failure", _("Tried again when it fails")),
    ("retry_codes", _("Only with these exit codes")),
    ("retry_lost", _("Tried again when its worker is lost")),
    ("retry_safety", _("Running it twice")),
)
TEXTS = tuple(name for name, _label in LABELS)
SAFETIES: tuple[tuple[str, Promise], ...] = (
    ("unknown", pgettext_lazy("running it twice", "I do not know")),
    ("idempotent", pgettext_lazy("running it twice", "does no harm")),
    ("deduplicated", pgettext_lazy("running it twice", "is noticed by the script itself")),
)
WORDS: dict[str, dict[str, Promise | str]] = {
    "retry_failure": {"1": _("yes"), "": _("no")},
    "retry_lost": {"1": _("yes"), "": _("no")},
    "retry_safety": dict(SAFETIES),
}


def texts(rule: Mapping[str, Any] | None) -> dict[str, str]:
    """What the form shows of a rule; None is the default one."""
    shown = rule or RetryRule().document()
    return {
        "retry_attempts": str(shown["max_attempts"]),
        "retry_failure": "1" if shown["retry_on_failure"] else "",
        "retry_codes": ", ".join(map(str, shown["retry_exit_codes"])),
        "retry_lost": "1" if shown["retry_on_lost"] else "",
        "retry_safety": shown["safety"],
        "retry_wait": form_values.unscaled(shown["backoff_base_ms"], 1000),
        "retry_longest": form_values.unscaled(shown["backoff_max_ms"], 1000),
    }


def read(values: Mapping[str, str], errors: dict[str, list[str | Promise]]) -> dict[str, Any]:
    """The field of the API; what is no number is named in `errors`."""
    wait = _number(values, "retry_wait", 1000, errors) or 0
    longest = _number(values, "retry_longest", 1000, errors) or 0
    codes = [code for code in re.split(r"[,，\s]+", values["retry_codes"]) if code]
    if not all(re.fullmatch(r"[0-9]{1,3}", code) for code in codes):
        errors["retry_codes"] = [_("Whole numbers are expected, separated by commas.")]
        codes = []
    return {
        "max_attempts": _number(values, "retry_attempts", 1, errors) or 1,
        "retry_on_failure": values["retry_failure"] == "1",
        "retry_exit_codes": [int(code) for code in codes],
        "retry_on_lost": values["retry_lost"] == "1",
        "safety": values["retry_safety"] or "unknown",
        "backoff_base_ms": wait,
        "backoff_max_ms": max(wait, longest),
    }


def _number(
    values: Mapping[str, str], name: str, factor: int, errors: dict[str, list[str | Promise]]
) -> int | None:
    try:
        return form_values.scaled(values[name], factor)
    except ValueError:
        errors[name] = [form_values.NO_NUMBER]
        return None
