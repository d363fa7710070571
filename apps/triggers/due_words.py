"""What became of a due time, in one sentence, and the one thing that may be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.functional import Promise
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _

from apps.runs.models import Skip

# status, and reason where it matters → the sentence and the code of an action.
_SAID: dict[tuple[str, str | None], tuple[str | Promise, str]] = {
    ("ran", "succeeded"): (_("It ran and succeeded."), "open_run"),
    ("ran", "failed"): (_("It ran and failed."), "open_run"),
    ("ran", "cancelled"): (_("It was started and stopped."), "open_run"),
    ("ran", "timed_out"): (_("It ran longer than it may and was stopped."), "open_run"),
    ("ran", "lost"): (_("It was started, and then its worker was lost."), "open_run"),
    ("ran", "waiting_approval"): (_("It was started and waits for an approval."), "open_run"),
    ("ran", None): (_("It was started and is still going."), "open_run"),
    ("waits", None): (_("It was started and is about to be taken by a worker."), "open_run"),
    ("waits", "place"): (_("It waits: an earlier run of the task is still going."), "stop_blocking_run"),
    ("waits", "worker"): (_("It waits: no worker takes runs."), "add_worker"),
    ("waits", "labels"): (_("It waits: no worker has all the labels that it needs."), "add_worker"),
    ("waits", "priority"): (_("It waits: all slots are taken."), "add_worker"),
    ("waits", "retry"): (_("It waits to be tried again."), "open_run"),
    ("skipped", "concurrency_skipped"): (
        _("It was skipped: an earlier run was still going, and the task skips starts meanwhile."),
        "change_concurrency",
    ),
    ("skipped", "trigger_broken"): (_("The trigger could not be carried out as it was."), "change_rule"),
    ("approval", "due"): (_("It needs an approval, which is about to be asked for."), "none"),
    ("approval", "filed"): (_("It needs an approval, which was asked for."), "open_approval"),
    ("approval", None): (_("It needs an approval, which could not be asked for."), "start_now"),
    ("missed", "scheduler_down"): (_("It was missed: no scheduler was running."), "check_scheduler"),
    ("missed", "clock_jump"): (
        _("It was missed: the system's clock was set forward, or the machine was asleep."),
        "start_now",
    ),
    ("missed", None): (_("It was missed: the scheduler was too late for it."), "check_scheduler"),
    ("disabled", "task_disabled"): (_("The task was disabled."), "enable_task"),
    ("disabled", "trigger_disabled"): (_("The trigger was disabled."), "enable_trigger"),
    ("archived", "task_archived"): (_("The task was archived."), "none"),
    ("archived", "project_archived"): (_("The project was archived."), "restore_project"),
    ("left_out", None): (
        _("The clocks went forward: the time did not exist that day, and the rule goes by the clock."),
        "change_rule",
    ),
    ("planned", None): (_("It is still to come."), "none"),
    ("pending", None): (_("It is due at this moment."), "none"),
    ("unknown", None): (_("There is no record of it any more."), "start_now"),
}
_AGAIN_AT = _("It waits to be tried again, until %(time)s.")
_MOVED = _("Its time did not exist that day, so it was due right behind the gap of the clocks.")
_FIRST = _("The clocks showed this time twice that day; it was due once, the first time.")
_STATUS = {
    "concurrency_skipped": "skipped",
    "trigger_broken": "skipped",
    "approval_required": "approval",
    "missed": "missed",
    "task_disabled": "disabled",
    "trigger_disabled": "disabled",
    "task_archived": "archived",
    "project_archived": "archived",
}


@dataclass(frozen=True)
class Verdict:
    """What became of it: a status, and the reason (of a run its status, of a miss its cause)."""

    status: str
    reason: str | None = None

    @classmethod
    def of_skip(cls, skip: Skip) -> Verdict:
        """The verdict of a record."""
        status = _STATUS[skip.reason]
        if status == "approval":
            return cls(status, skip.filing or skip.reason)
        return cls(status, skip.cause if status == "missed" else skip.reason)


def explain(
    verdict: Verdict,
    *,
    blocked: bool = False,
    waiting_for: str | None = None,
    again_at: datetime | None = None,
    change: str | None = None,
) -> tuple[str, str]:
    """The sentence, in the language in use, and the code of an action.

    `blocked`: the run that was in the way is still going. `again_at`: till when it waits for its next attempt.
    """
    reason = waiting_for if verdict.status == "waits" else verdict.reason
    found: Any = _SAID.get((verdict.status, reason)) or _SAID[verdict.status, None]
    sentence, action = str(found[0]), str(found[1])
    if again_at is not None:
        sentence = str(_AGAIN_AT) % {"time": localtime(again_at).strftime("%Y-%m-%d %H:%M:%S")}
    if action == "change_concurrency" and blocked:
        action = "stop_blocking_run"
    if change == "moved":
        sentence = f"{sentence} {_MOVED}"
    elif change == "first_of_two":
        sentence = f"{sentence} {_FIRST}"
    return sentence, action
