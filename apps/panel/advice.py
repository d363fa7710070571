"""A next step for a run that ended badly, where the facts point to one; nothing where they do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from re import Match

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.artifacts.errors import CapacityUnavailable
from apps.panel import words
from apps.runs.models import Run

_LINES: tuple[tuple[str, Callable[[Match[str]], str]], ...] = (
    (
        r"ModuleNotFoundError: No module named '([\w.]+)'",
        lambda m: (
            _("Python does not find the module %(name)s: install it where QingLong runs.") % {"name": m[1]}
        ),
    ),
    (
        r"Cannot find (?:module|package) '([^']{1,80})'",
        lambda m: (
            _("Node.js does not find %(name)s: install it in the task's working folder.") % {"name": m[1]}
        ),
    ),
    (r"No space left on device", lambda m: _("The disk is full: make room, then retry.")),
    (r"Permission denied", lambda m: _("A file or folder may not be used by the user that scripts run as.")),
    (
        r"(?:Connection refused|Connection timed out|Name or service not known|Could not resolve host)",
        lambda m: _("Another machine did not answer: look whether it is up and reachable, then retry."),
    ),
)
# Why a run was not started, by the code of the refusal.
_SECRETS: dict[str, Promise] = {
    "plan_unavailable": gettext_lazy(
        "A secret that the task names does not exist in this project: store it under Secrets, then retry."
    ),
    "secret_disabled": gettext_lazy(
        "A secret that the task names is disabled: enable it under Secrets, then retry."
    ),
    "local_secret_unavailable": gettext_lazy(
        "A secret cannot be opened on this machine: look at its keyring, or where the value lies; `doctor` says more."
    ),
    "environment_too_large": gettext_lazy(
        "Variables and arguments are more than a process can be given; the biggest are named. Give large secrets by "
        "file."
    ),
}
_COMPILED = [(re.compile(pattern), advice) for pattern, advice in _LINES]


def for_run(run: Run, exit_code: int | None, tail: str, *, timeout_ms: int | None) -> str:
    """What to try next, in one sentence; empty when the facts do not tell."""
    if run.status == "timed_out":
        if timeout_ms is None:
            return ""
        limit = words.milliseconds(timeout_ms)
        return _(
            "Its time limit is %(time)s: raise it in the task, or look in the log for what took so long."
        ) % {"time": limit}
    if words.worker_lost(run):
        return _(
            "The machine that ran it fell silent. Retry it once you know that it does no harm to run it twice."
        )
    if run.status != "failed":
        return ""
    if run.error_summary == CapacityUnavailable.code:
        return _(
            "The disk of the logs has too little room left to keep this run's log. Make room or keep fewer logs, "
            "then retry."
        )
    if refused := _SECRETS.get((run.error_summary or "").partition(":")[0]):
        return str(refused)
    for pattern, advice in _COMPILED:
        if found := pattern.search(tail):
            return advice(found)
    match exit_code:
        case 127:
            return _("127 means: a command was not found. Look at its name and at QINGLONG_PATH.")
        case 126:
            return _("126 means: a file was found and may not be executed.")
        case 137:
            return _("137 means: something killed it (KILL), most often for lack of memory.")
        case 139:
            return _("139 means: the program crashed (SEGV).")
        case 143:
            return _("143 means: something asked it to end (TERM).")
    return ""
