"""The events of a run as a story: steps that belong together become one sentence, the facts stay behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from apps.panel import file_words, limits_part, words
from apps.runs.models import Run, RunEvent

# Run and attempt take most steps side by side; told once, by what the reader wants to know.
_SAME = {
    "attempt.claimed": "run.queued", "run.created": "run.queued", "run.running": "attempt.running",
    "attempt.succeeded": "run.succeeded", "attempt.failed": "run.failed", "attempt.cancelled": "run.cancelled",
    "attempt.timed_out": "run.timed_out", "attempt.lost": "run.lost", "run.dispatching": "run.dispatching",
    "attempt.starting": "run.dispatching",
}  # fmt: skip
# What a step looks like.
_LOOKS = {
    "run.queued": "queued", "run.dispatching": "dispatching", "attempt.running": "running",
    "run.waiting_approval": "waiting_approval", "run.retry_wait": "retry_wait", "run.succeeded": "succeeded",
    "run.failed": "failed", "run.cancelled": "cancelled", "run.timed_out": "timed_out", "run.lost": "lost",
    "run.cancel_requested": "cancelled", "run.cancel_dispatched": "cancelled",
}  # fmt: skip


@dataclass
class Step:
    """One sentence with its time, what it looks like, how long since the step before, and the events behind it."""

    at: datetime
    kind: str
    look: str
    sentence: str = ""
    notes: list[str] = field(default_factory=list)
    who: str = ""
    since_ms: int | None = None
    events: list[tuple[RunEvent, list[tuple[str, str]]]] = field(default_factory=list)

    @property
    def key(self) -> int:
        return self.events[0][0].sequence


def tell(run: Run, events: Sequence[RunEvent], people: Mapping[str, str]) -> list[Step]:
    """The steps of a run, first to last; a due time comes before them all."""
    steps: list[Step] = []
    for event in events:
        kind = _SAME.get(event.type, event.type)
        step = steps[-1] if steps and steps[-1].kind == kind else None
        if step is None:
            step = Step(event.created_at, kind, _LOOKS.get(kind, "created"))
            if steps:
                step.since_ms = words.span_ms(steps[-1].at, event.created_at)
            steps.append(step)
        sentence, notes = words.event(event.type, event.payload)
        if event.type == kind or not step.sentence:
            step.sentence = sentence
        notes += [*limit_met(event.payload), *stop_proof(event.payload), *file_words.notes(event.payload)]
        step.notes += [note for note in notes if note not in step.notes]
        step.who = step.who or (people.get(event.actor_id or "", "") if event.actor_type == "user" else "")
        step.events.append((event, _facts(event)))
    if run.scheduled_for is not None and steps:
        steps[0].since_ms = words.span_ms(run.scheduled_for, steps[0].at)
    return steps


def limit_met(payload: Mapping[str, Any]) -> list[str]:
    """`limit met: Memory, in MB`."""
    name = limits_part.WORDS.get(str(payload.get("limit")))
    return [] if name is None else [_("limit met: %(name)s") % {"name": name}]


def stop_proof(payload: Mapping[str, Any]) -> list[str]:
    """`3 processes, all gone after 12 ms`, `KILL was needed`, who escaped."""
    proof = payload.get("stopped")
    if not isinstance(proof, dict):
        return []
    count, killed, escaped = proof.get("processes", 0), proof.get("killed"), proof.get("escaped") or []
    said = [
        ngettext("%(n)d process was told to end", "%(n)d processes were told to end", count) % {"n": count},
        _("KILL was needed") if killed else _("KILL was not needed"),
    ]
    if escaped:
        pids = pgettext("between numbers", ", ").join(str(one["pid"]) for one in escaped)
        said.append(_("still there: process %(pids)s") % {"pids": pids})
    else:
        said.append(_("all gone after %(time)s") % {"time": words.milliseconds(proof.get("took_ms", 0))})
    return said


def _facts(event: RunEvent) -> list[tuple[str, str]]:
    """What is stored with an event, for those who want to know exactly."""
    return [(name, _shown(value)) for name, value in sorted(event.payload.items()) if value is not None]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_shown(inner)}" for name, inner in sorted(value.items()))
    return str(value)[:200]
