"""Who or what stopped a run, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.panel import words
from apps.runs.models import Run, RunEvent

# What services note beside the reason `policy`.
RULES: dict[str, Promise] = {
    "replaced": gettext_lazy("a newer run took its place"),
    "task disabled": gettext_lazy("its task was disabled"),
    "task archived": gettext_lazy("its task was archived"),
    "project archived": gettext_lazy("its project was archived"),
    "queue emptied": gettext_lazy("its queue was emptied"),
    "task or project switched off": gettext_lazy("its task or project was switched off"),
    "task needs an approval": gettext_lazy("its task needs an approval by now"),
}


def sentence(run: Run, events: Sequence[RunEvent], people: Mapping[str, str]) -> str | None:
    """`Stopped by Ann after 3.0 s.`; None for a run that nobody stopped, or of whose stop nothing is known."""
    asked = next((event for event in events if event.type == "run.cancel_requested"), None)
    if run.status != "cancelled" or asked is None:
        return None
    begun = run.started_at is not None and run.finished_at is not None
    took = words.duration(run.finished_at - run.started_at) if run.finished_at and run.started_at else ""
    reason, note = asked.payload.get("reason"), str(asked.payload.get("note") or "")
    if reason == "user" and (name := people.get(asked.actor_id or "", "")):
        said = (
            _("Stopped by %(name)s after %(time)s.") if begun else _("Stopped by %(name)s before it began.")
        )
        return said % {"name": name, "time": took}
    why = RULES.get(note) if reason == "policy" else words.CANCEL_REASONS.get(str(reason))
    if why is None or reason == "user":
        return None
    said = _("Stopped after %(time)s: %(why)s.") if begun else _("Stopped before it began: %(why)s.")
    return said % {"why": why, "time": took}
