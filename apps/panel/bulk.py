"""One action on many tasks: each task is its own transaction, its own look at the right, its own outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from apps.core.errors import DomainError
from apps.projects.errors import ApprovalRequired
from apps.projects.policy import Grant
from apps.runs.models import OPEN, Run
from apps.runs.services import Skipped, request_cancel, start_run
from apps.tasks.models import Task
from apps.tasks.validation import MAX_LABELS
from apps.triggers import services as triggers

ASK_FROM = 10
MAX_PAGE = 200
_MAX_STOPS = 100


class Refused(Exception):
    """A task is left as it is; carries the sentence."""


@dataclass(frozen=True)
class Wish:
    """What is to be done: an action's name, its text where it has one, and the click it came from."""

    action: str
    value: str = ""
    once: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of one task; `refusal` is empty where it was done. `asks`: it can be asked for."""

    task: Task
    refusal: str = ""
    asks: bool = False


@dataclass(frozen=True)
class Action:
    """`done` counts ("47 started"), `question` is asked of so many and `question_all` of all that match.

    `asks` means that it asks even for one task; `takes` names the text it needs.
    """

    permission: str
    carry_out: Callable[[Grant, Task, Wish], None]
    done: Promise
    question: Promise
    question_all: Promise
    title_all: Promise
    asks: bool = False
    takes: str = ""


def _run(grant: Grant, task: Task, wish: Wish) -> None:
    key = f"panel:bulk-run:{task.pk}:{wish.once}" if wish.once else None
    outcome = start_run(grant, task.pk, trigger_type="manual", idempotency_key=key)
    if isinstance(outcome, Skipped):
        raise Refused(_("An earlier run is still going."))


def _stop(grant: Grant, task: Task, wish: Wish) -> None:
    going = Run.objects.filter(task_id=task.pk, status__in=OPEN - {"lost"}).order_by("-created_at", "-id")
    found = list(going.values_list("pk", flat=True)[:_MAX_STOPS])
    if not found:
        raise Refused(_("It does not run."))
    for run_id in found:
        request_cancel(grant, run_id)


def _enable(grant: Grant, task: Task, wish: Wish) -> None:
    triggers.set_task_enabled(grant, task.pk, task.version, wish.action == "enable")


def _pin(grant: Grant, task: Task, wish: Wish) -> None:
    triggers.change_task(grant, task.pk, task.version, {"pinned": wish.action == "pin"})


def _label(grant: Grant, task: Task, wish: Wish) -> None:
    label = wish.value.strip()
    if wish.action == "unlabel":
        labels = [known for known in task.labels if known != label]
    else:
        labels = list(dict.fromkeys([*task.labels, label]))
    if len(labels) > MAX_LABELS:
        raise Refused(_("It has 32 labels already."))
    triggers.change_task(grant, task.pk, task.version, {"labels": labels})


def _archive(grant: Grant, task: Task, wish: Wish) -> None:
    triggers.archive_task(grant, task.pk, task.version)


ACTIONS: dict[str, Action] = {
    "run": Action(
        "run.start", _run,
        ngettext_lazy("%(n)d started", "%(n)d started", "n"),
        ngettext_lazy("Run %(n)d task?", "Run %(n)d tasks?", "n"),
        gettext_lazy("Run all tasks that match?"),
        gettext_lazy("Running all that match"),
    ),
    "stop": Action(
        "run.stop", _stop,
        ngettext_lazy("%(n)d stopped", "%(n)d stopped", "n"),
        ngettext_lazy("Stop what %(n)d task runs?", "Stop what %(n)d tasks run?", "n"),
        gettext_lazy("Stop what all tasks that match run?"),
        gettext_lazy("Stopping what all that match run"),
        asks=True,
    ),
    "enable": Action(
        "task.update", _enable,
        ngettext_lazy("%(n)d enabled", "%(n)d enabled", "n"),
        ngettext_lazy("Enable %(n)d task?", "Enable %(n)d tasks?", "n"),
        gettext_lazy("Enable all tasks that match?"),
        gettext_lazy("Enabling all that match"),
    ),
    "disable": Action(
        "task.update", _enable,
        ngettext_lazy("%(n)d disabled", "%(n)d disabled", "n"),
        ngettext_lazy("Disable %(n)d task?", "Disable %(n)d tasks?", "n"),
        gettext_lazy("Disable all tasks that match?"),
        gettext_lazy("Disabling all that match"),
    ),
    "pin": Action(
        "task.update", _pin,
        ngettext_lazy("%(n)d pinned", "%(n)d pinned", "n"),
        ngettext_lazy("Pin %(n)d task?", "Pin %(n)d tasks?", "n"),
        gettext_lazy("Pin all tasks that match?"),
        gettext_lazy("Pinning all that match"),
    ),
    "unpin": Action(
        "task.update", _pin,
        ngettext_lazy("%(n)d unpinned", "%(n)d unpinned", "n"),
        ngettext_lazy("Unpin %(n)d task?", "Unpin %(n)d tasks?", "n"),
        gettext_lazy("Unpin all tasks that match?"),
        gettext_lazy("Unpinning all that match"),
    ),
    "label": Action(
        "task.update", _label,
        ngettext_lazy("%(n)d labelled", "%(n)d labelled", "n"),
        ngettext_lazy("Label %(n)d task?", "Label %(n)d tasks?", "n"),
        gettext_lazy("Label all tasks that match?"),
        gettext_lazy("Labelling all that match"),
        takes="label",
    ),
    "unlabel": Action(
        "task.update", _label,
        ngettext_lazy("label taken off %(n)d", "label taken off %(n)d", "n"),
        ngettext_lazy("Take the label off %(n)d task?", "Take the label off %(n)d tasks?", "n"),
        gettext_lazy("Take the label off all tasks that match?"),
        gettext_lazy("Taking the label off all that match"),
        takes="label",
    ),
    "archive": Action(
        "task.delete", _archive,
        ngettext_lazy("%(n)d archived", "%(n)d archived", "n"),
        ngettext_lazy("Archive %(n)d task?", "Archive %(n)d tasks?", "n"),
        gettext_lazy("Archive all tasks that match?"),
        gettext_lazy("Archiving all that match"),
        asks=True,
    ),
}  # fmt: skip
WARNINGS: dict[str, Promise] = {
    "stop": gettext_lazy("Running processes are asked to end, queued runs are taken out of the queue."),
    "disable": gettext_lazy("Their queued runs are taken out of the queue; running ones go on to their end."),
    "archive": gettext_lazy(
        "Their queued runs are taken out of the queue, running ones go on to their end. History and logs stay."
    ),
    "run": gettext_lazy("Each is started once, by hand."),
}


def carry_out(give: Callable[[], Grant], tasks: Iterable[Task], wish: Wish) -> list[Outcome]:
    """Does it task by task; `give` asks the policy anew for each. What is refused is told, not raised."""
    return [_one(give, task, wish) for task in tasks]


def _one(give: Callable[[], Grant], task: Task, wish: Wish) -> Outcome:
    try:
        ACTIONS[wish.action].carry_out(give(), task, wish)
    except Refused as refusal:
        return Outcome(task, str(refusal))
    except DomainError as refusal:
        if refusal.status >= 500 and refusal.status != 503:
            raise
        fields = getattr(refusal, "fields", {})
        sentence = next((str(text) for group in fields.values() for text in group), str(refusal.detail))
        told = _("%(sentence)s (%(code)s)") % {"sentence": sentence, "code": refusal.code}
        return Outcome(task, told, asks=isinstance(refusal, ApprovalRequired))
    return Outcome(task)


def chosen(project_id: str, task_ids: Sequence[UUID]) -> list[Task]:
    """The tasks of a selection that are in the project and not archived, in its order."""
    rows = Task.objects.filter(project_id=project_id, pk__in=task_ids[:MAX_PAGE], archived_at=None)
    found = {task.pk: task for task in rows}
    return [found[task_id] for task_id in dict.fromkeys(task_ids[:MAX_PAGE]) if task_id in found]


def summary(wish: Wish, outcomes: Sequence[Outcome]) -> str:
    """`47 started, 3 not.`"""
    done = sum(not outcome.refusal for outcome in outcomes)
    sentence = str(ACTIONS[wish.action].done % {"n": done})
    if done == len(outcomes):
        return _("%(done)s.") % {"done": sentence}
    return _("%(done)s, %(rest)d not.") % {"done": sentence, "rest": len(outcomes) - done}
