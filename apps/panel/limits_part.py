"""The part "Limits" of the task form: what a run may use as texts, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.panel import form_values
from apps.tasks.limits import Limits

_MEBIBYTE = 1_048_576
# Text of the form, field of the API, its scale, and what it is called.
_FIELDS: tuple[tuple[str, str, int, Promise], ...] = (
    ("limit_memory", "memory_bytes", _MEBIBYTE, _("Memory, in MB")),
    ("limit_cpu", "cpu_percent", 1, _("Processors, in percent")),
    ("limit_time", "cpu_seconds", 1, _("Processor time of each process, in seconds")),
    ("limit_processes", "processes", 1, _("Processes at once")),
    ("limit_files", "open_files", 1, _("Open files of each process")),
)
LABELS: tuple[tuple[str, Promise], ...] = tuple((text, label) for text, _name, _scale, label in _FIELDS)
TEXTS = tuple(text for text, _label in LABELS)
WORDS: dict[str, Promise] = {name: label for _text, name, _scale, label in _FIELDS}


def texts(limits: Limits) -> dict[str, str]:
    """What the form shows of limits; nothing where there is none."""
    return {text: form_values.unscaled(getattr(limits, name), scale) for text, name, scale, _label in _FIELDS}


def read(values: Mapping[str, str], errors: dict[str, list[str | Promise]]) -> dict[str, Any]:
    """The field of the API; what is no number is named in `errors`."""
    found: dict[str, Any] = {}
    for text, name, scale, _label in _FIELDS:
        try:
            found[name] = form_values.scaled(values[text], scale)
        except ValueError:
            errors[text] = [form_values.NO_NUMBER]
    return found


def rows(values: Mapping[str, str]) -> list[tuple[Promise, str]]:
    """The limits that are set, each by its name, for a page that shows them."""
    return [(label, values[text]) for text, label in LABELS if values[text]]
