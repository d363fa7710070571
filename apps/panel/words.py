"""States, triggers and events in plain words, for pages and titles (panel.md §2, §7)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from apps.core import clock
from apps.runs.models import RunStatus, TriggerType
from apps.runs.retries import FAILURE_EXHAUSTED
from apps.tasks import placement

STATUS_GROUPS: tuple[tuple[Promise, tuple[str, ...]], ...] = (
    (gettext_lazy("On the way"), ("queued", "dispatching", "running", "retry_wait", "waiting_approval")),
    (gettext_lazy("Ended badly"), ("failed", "timed_out", "lost")),
    (gettext_lazy("Good"), ("succeeded",)),
    (gettext_lazy("Stopped"), ("cancelled",)),
)
ATTEMPT_STATES: dict[str, Promise] = {
    "claimed": pgettext_lazy("attempt", "Assigned"),
    "starting": pgettext_lazy("attempt", "Starting"),
}
# Attempts have two states of their own; for icon and colour they are a run that starts.
LOOKS = {"claimed": "dispatching", "starting": "dispatching"}
# For the browser's tab, where no icon can stand.
SYMBOLS = {
    "queued": "…", "dispatching": "▷", "running": "▶", "waiting_approval": "!", "retry_wait": "↻", "succeeded": "✓",
    "failed": "✕", "cancelled": "■", "timed_out": "▲", "lost": "?",
}  # fmt: skip
ROLES: dict[str, Promise] = {
    "owner": pgettext_lazy("role", "Owner"),
    "admin": pgettext_lazy("role", "Admin"),
    "operator": pgettext_lazy("role", "Operator"),
    "viewer": pgettext_lazy("role", "Viewer"),
}
ROLE_HELP: dict[str, Promise] = {
    "owner": gettext_lazy("everything, and the only one who makes owners"),
    "admin": gettext_lazy("tasks, secrets, people and settings"),
    "operator": gettext_lazy("runs, stops and edits tasks"),
    "viewer": gettext_lazy("reads tasks and runs"),
}
SKIP_REASONS: dict[str, Promise] = {
    "concurrency_skipped": gettext_lazy("Skipped: an earlier run was still going."),
    "missed": gettext_lazy("Missed: QingLong was not running at that time."),
    "task_disabled": gettext_lazy("The task was disabled."),
    "task_archived": gettext_lazy("The task was archived."),
    "project_archived": gettext_lazy("The project was archived."),
}
WAITS: dict[str, Promise] = {
    "place": gettext_lazy("Waits until an earlier run of this task has ended."),
    "worker": gettext_lazy("Waits for a worker with a free slot."),
    "labels": gettext_lazy("Waits: no worker has all the labels that it needs."),
    "priority": gettext_lazy("Waits for its turn."),
    "retry": gettext_lazy("Waits to be tried again."),
}


def state(status: str) -> str:
    """The word of a run's or an attempt's state."""
    if status in ATTEMPT_STATES:
        return str(ATTEMPT_STATES[status])
    return str(RunStatus(status).label) if status in RunStatus.values else status


def trigger(kind: str) -> str:
    """What started a run, as a word."""
    return str(TriggerType(kind).label) if kind in TriggerType.values else kind


def duration(span: timedelta | None) -> str:
    """`850 ms`, `41 s`, `1 min 10 s`, `2 h 5 min`, `3 d 4 h`, to the nearest second; empty for none."""
    if span is None:
        return ""
    milliseconds = max(0, span // timedelta(milliseconds=1))
    if milliseconds < 1000:
        return _("%(ms)d ms") % {"ms": milliseconds}
    seconds = (milliseconds + 500) // 1000
    if seconds < 60:
        return _("%(s)d s") % {"s": seconds}
    if seconds < 3600:
        return _("%(min)d min %(s)d s") % {"min": seconds // 60, "s": seconds % 60}
    if seconds < 86_400:
        return _("%(h)d h %(min)d min") % {"h": seconds // 3600, "min": seconds % 3600 // 60}
    return _("%(d)d d %(h)d h") % {"d": seconds // 86_400, "h": seconds % 86_400 // 3600}


def milliseconds(span: int) -> str:
    """The same for a span in milliseconds."""
    return duration(timedelta(milliseconds=span))


def span_ms(since: datetime, until: datetime) -> int:
    """Milliseconds between two times, never less than none."""
    return max(0, (until - since) // timedelta(milliseconds=1))


def ago(at: datetime) -> str:
    """How long ago, or in how long, in one unit; a date beyond thirty days."""
    seconds = (clock.now() - at).total_seconds()
    if seconds < -1:
        return _in(-seconds)
    if seconds < 5:
        return _("just now")
    if seconds < 60:
        return _("%(n)d s ago") % {"n": seconds}
    if seconds < 3600:
        return _("%(n)d min ago") % {"n": seconds // 60}
    if seconds < 86_400:
        return _("%(n)d h ago") % {"n": seconds // 3600}
    if seconds < 30 * 86_400:
        return _("%(n)d d ago") % {"n": seconds // 86_400}
    return date_format(timezone.localtime(at), "Y-m-d")


def _in(seconds: float) -> str:
    """Rounded: what was just given 90 days ends in 90 days, not in 89."""
    if seconds < 60:
        return _("in %(n)d s") % {"n": round(seconds)}
    if seconds < 3600:
        return _("in %(n)d min") % {"n": round(seconds / 60)}
    if seconds < 86_400:
        return _("in %(n)d h") % {"n": round(seconds / 3600)}
    return _("in %(n)d d") % {"n": round(seconds / 86_400)}


def exact(at: datetime) -> str:
    """`2026-11-29 18:05:03` in the panel's zone."""
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """`812 B`, `1.0 KB`, `12 MB`."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def run_sentence(
    run: Any, *, exit_code: int | None, waiting_for: str | None, again_at: datetime | None = None
) -> str:
    """What happened to a run or what it waits for (`again_at`: till when), in one sentence."""
    if run.cancel_requested_at and not run.ended:
        return _("Is being stopped.")
    took = duration(run.finished_at - run.started_at) if run.finished_at and run.started_at else ""
    match run.status:
        case "retry_wait" if again_at is not None:
            return _("Waits to be tried again, until %(time)s.") % {"time": exact(again_at)}
        case "queued" if waiting_for == "labels":
            labels = ", ".join(f"{name}={value}" for name, value in placement.labels_of(run.requires).items())
            return _("Waits: no worker has the labels %(labels)s.") % {"labels": labels}
        case "queued" | "retry_wait" if waiting_for in WAITS:
            return str(WAITS[waiting_for])
        case "created" | "queued":
            return _("Waits in the queue.")
        case "dispatching":
            return _("A worker has taken it and is starting it.")
        case "running":
            return _("Runs now.")
        case "succeeded":
            return _("Succeeded after %(time)s.") % {"time": took}
        case "cancelled":
            if not run.started_at:
                return _("Stopped before it began.")
            return _("Stopped after %(time)s.") % {"time": took}
        case "timed_out":
            return _("Stopped at its time limit, after %(time)s.") % {"time": took}
        case "lost" | "failed" if worker_lost(run):
            return _("The worker was lost; how the run ended is not known.")
        case "failed" if run.error_code == FAILURE_EXHAUSTED.code and exit_code is not None:
            return _("Exit code %(code)d in the last of its attempts, after %(time)s.") % {
                "code": exit_code,
                "time": took,
            }
        case "failed" if took and exit_code is not None:
            return _("Exit code %(code)d after %(time)s.") % {"code": exit_code, "time": took}
        case "failed" if run.started_at:
            return _("Failed after %(time)s.") % {"time": took}
        case "failed":
            return _("Could not be started.")
    return state(run.status)


def worker_lost(run: Any) -> bool:
    """Whether the run's last attempt was lost, and nothing came after it."""
    return run.status == "lost" or (run.error_code or "").startswith("RUN_LOST_RETRY_")


_EVENTS: dict[str, Promise] = {
    "run.created": gettext_lazy("Created"),
    "run.queued": gettext_lazy("Queued"),
    "run.dispatching": gettext_lazy("Taken by a worker"),
    "run.running": gettext_lazy("Running"),
    "run.waiting_approval": gettext_lazy("Waits for an approval"),
    "run.retry_wait": gettext_lazy("Waits for the next attempt"),
    "run.succeeded": gettext_lazy("Ended: succeeded"),
    "run.failed": gettext_lazy("Ended: failed"),
    "run.cancelled": gettext_lazy("Ended: stopped"),
    "run.timed_out": gettext_lazy("Ended: timed out"),
    "run.lost": gettext_lazy("Contact with the worker was lost"),
    "run.cancel_requested": gettext_lazy("Stop requested"),
    "run.cancel_dispatched": gettext_lazy("Stop delivered to the process"),
    "run.cancel_dispatch_failed": gettext_lazy("Stop could not be delivered; tried again soon"),
    "run.cancel_dispatch_blocked": gettext_lazy("Stop could not be delivered"),
    "run.stop_resolved": gettext_lazy("A person decided about the stop"),
    "run.escaped_kill_requested": gettext_lazy("Asked to end what outlived the stop"),
    "run.escaped_killed": gettext_lazy("What outlived the stop was looked after"),
    "run.dispatch_reclaimed": gettext_lazy("Taken again by a worker"),
    "run.dispatch_released": gettext_lazy("Given back by the worker"),
    "run.dispatch_adopted": gettext_lazy("Carried on by a new worker session"),
    "run.reconciled": gettext_lazy("Found still running after a restart"),
    "attempt.claimed": gettext_lazy("Attempt made ready"),
    "attempt.starting": gettext_lazy("Process is being started"),
    "attempt.running": gettext_lazy("Process started"),
    "attempt.succeeded": gettext_lazy("Process ended: succeeded"),
    "attempt.failed": gettext_lazy("Process ended: failed"),
    "attempt.cancelled": gettext_lazy("Process ended: stopped"),
    "attempt.timed_out": gettext_lazy("Process ended: time limit"),
    "attempt.lost": gettext_lazy("Process was lost"),
    "attempt.secrets_printed": gettext_lazy("Secrets were printed, and masked"),
    "attempt.files_found": gettext_lazy("Files that the lost process had left were kept"),
}
_DETAILS: tuple[tuple[str, Promise], ...] = (
    ("worker_id", gettext_lazy("worker %s")),
    ("pid", gettext_lazy("process %s")),
    ("exit_code", gettext_lazy("exit code %s")),
    ("error_code", gettext_lazy("code %s")),
)


def event(kind: str, payload: dict[str, Any]) -> tuple[str, list[str]]:
    """The sentence of a run event and its details; an unknown kind is shown as it is."""
    details = [
        str(text) % payload[name]
        for name, text in _DETAILS
        if payload.get(name) is not None and not str(payload[name]).startswith("EXECUTION_")
    ]
    reason = payload.get("reason")
    if kind == "run.cancel_requested" and reason in CANCEL_REASONS:
        details.append(str(CANCEL_REASONS[reason]))
    if kind == "attempt.secrets_printed":
        details.append(pgettext("between words", ", ").join(payload.get("secrets", [])))
    said = payload.get("note") or (reason if kind == "run.stop_resolved" else "")
    if said:
        details.append(pgettext("quoted note", "“%s”") % said)
    return str(_EVENTS.get(kind, kind)), details


CANCEL_REASONS: dict[str, Promise] = {
    "user": gettext_lazy("by a person"),
    "policy": gettext_lazy("by a rule of the task"),
    "shutdown": gettext_lazy("QingLong was stopping"),
    "reconcile": gettext_lazy("while putting things right after a restart"),
    "timeout": gettext_lazy("time limit reached"),
}
