"""What differs between two states of a task, field by field: revisions, and a stale form against what is stored."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from apps.panel import limits_part, retry_part
from apps.panel.task_form import CONCURRENCY, KINDS, LANGUAGES, TaskForm

CODE = {"source", "before", "after"}
_LABELS: tuple[tuple[str, Promise], ...] = (
    ("name", _("Name")),
    ("slug", _("Short name")),
    ("description", _("Note")),
    ("kind", _("What runs")),
    ("language", _("Language")),
    ("args", _("Arguments")),
    ("work_dir", _("Working folder")),
    ("before", _("Before")),
    ("after", _("After")),
    ("timeout", _("Time limit in seconds")),
    ("grace", _("Time to end by itself, in seconds")),
    ("quota", _("Log kept, in MB")),
    *limits_part.LABELS,
    ("concurrency", _("When it overlaps")),
    ("max_parallel", _("Runs at once")),
    *retry_part.LABELS,
    ("priority", _("Priority")),
    ("labels", _("Labels")),
    ("requires", _("Runs on workers with")),
    ("requires_approval", _("Each start needs an approval")),
)
_WORDS: dict[str, dict[str, Promise | str]] = {
    "kind": dict(KINDS),
    "language": dict(LANGUAGES),
    "concurrency": {value: word for value, word, _help in CONCURRENCY},
    "requires_approval": {"1": _("yes")},
    **retry_part.WORDS,
}
# What belongs to one kind of body or one rule of overlapping only.
_ONLY_FOR = {
    "language": ("kind", "script"),
    "args": ("kind", "script"),
    "max_parallel": ("concurrency", "parallel"),
}


@dataclass(frozen=True)
class Line:
    """A line of a text comparison: `mark` is `+`, `-`, `@` (a gap) or a blank."""

    mark: str
    text: str


@dataclass(frozen=True)
class Difference:
    """One field that differs. Values of environment variables are never shown, only that they do."""

    name: str
    label: str | Promise
    before: str
    after: str

    @property
    def is_code(self) -> bool:
        """Whether it is compared line by line."""
        return self.name in CODE

    @property
    def lines(self) -> list[Line]:
        """The comparison for a page without script."""
        return list(unified(self.before, self.after))


def between(before: TaskForm, after: TaskForm) -> list[Difference]:
    """All fields that differ, what runs first."""
    found = []
    if before.text != after.text:
        found.append(Difference("source", pgettext_lazy("field", "Script"), before.text, after.text))
    for field, label in _LABELS:
        one, other = (_shown(form, field) for form in (before, after))
        if one != other:
            found.append(Difference(field, label, one, other))
    return [*found, *_environment(dict(before.env), dict(after.env)), *_secrets(before, after)]


def unified(before: str, after: str, context: int = 3) -> Iterator[Line]:
    """The lines that changed with some around them."""
    one, other = before.split("\n"), after.split("\n")
    for line in list(difflib.unified_diff(one, other, n=context, lineterm=""))[2:]:
        yield Line("@", "") if line.startswith("@@") else Line(line[0], line[1:])


def _shown(form: TaskForm, field: str) -> str:
    decider, value = _ONLY_FOR.get(field, ("", ""))
    if decider and form.values[decider] != value:
        return ""
    text = form.values[field]
    return str(_WORDS.get(field, {}).get(text, text))


def _secrets(before: TaskForm, after: TaskForm) -> Iterator[Difference]:
    one, other = ({row[0]: row for row in form.secrets} for form in (before, after))
    for variable in sorted(one.keys() | other.keys()):
        if one.get(variable) != other.get(variable):
            yield Difference(
                "secrets", _("Secrets"), _secret(one.get(variable)), _secret(other.get(variable))
            )


def _secret(row: tuple[str, str, str] | None) -> str:
    if row is None:
        return ""
    variable, secret, way = row
    return f"{variable} ← {secret}" if way == "env" else f"{variable}_FILE ← {secret}"


def _environment(before: dict[str, str], after: dict[str, str]) -> Iterator[Difference]:
    label = _("Environment variables")
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield Difference("env", label, "", name)
        elif name not in after:
            yield Difference("env", label, name, "")
        elif before[name] != after[name]:
            yield Difference("env", label, name, str(_("%(name)s, another value") % {"name": name}))
