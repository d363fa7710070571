"""The words of approvals: states, risks, reasons, and what becomes of what was approved."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from apps.approvals.queries import Seen, SeenExecution
from apps.approvals.standing import REASONS

STATUSES: dict[str, str | Promise] = {
    "pending": pgettext_lazy("approval", "Waits for a decision"),
    "approved": pgettext_lazy("approval", "Approved"),
    "rejected": pgettext_lazy("approval", "Rejected"),
    "consumed": pgettext_lazy("approval", "Handed over"),
    "expired": pgettext_lazy("approval", "Expired"),
    "void": pgettext_lazy("approval", "Void"),
    "withdrawn": pgettext_lazy("approval", "Withdrawn"),
}
RISKS: dict[str, str | Promise] = {
    "low": pgettext_lazy("risk", "low"),
    "medium": pgettext_lazy("risk", "medium"),
    "high": pgettext_lazy("risk", "high"),
    "critical": pgettext_lazy("risk", "critical"),
}
APPROVE_REASONS: tuple[tuple[str, str | Promise], ...] = (
    ("expected_change", gettext_lazy("Expected change")),
    ("tested", gettext_lazy("Tested")),
    ("agreed", gettext_lazy("Agreed on")),
    ("other", pgettext_lazy("reason", "Other")),
)
REJECT_REASONS: tuple[tuple[str, str | Promise], ...] = (
    ("not_expected", gettext_lazy("Not expected")),
    ("not_now", gettext_lazy("Not now")),
    ("too_risky", gettext_lazy("Too risky")),
    ("wrong", gettext_lazy("Something is wrong with it")),
    ("other", pgettext_lazy("reason", "Other")),
)
RECOVER_REASONS: tuple[tuple[str, str | Promise], ...] = (
    ("looked_at_the_run", gettext_lazy("I looked at the run")),
    ("looked_outside", gettext_lazy("I looked at what it should have changed")),
    ("cannot_be_told", gettext_lazy("It cannot be told")),
    ("other", pgettext_lazy("reason", "Other")),
)
ENDS: tuple[tuple[str, str | Promise], ...] = (
    ("confirm_succeeded", gettext_lazy("It happened")),
    ("confirm_failed", gettext_lazy("It did not happen")),
    ("abandon_unknown", gettext_lazy("Nobody knows; it is given up")),
)
EXECUTIONS: dict[str, str | Promise] = {
    "pending": gettext_lazy("Handed over; it is about to be carried out."),
    "leased": gettext_lazy("It is looked at once more before it starts."),
    "retry_wait": gettext_lazy("Put off; it is tried again."),
    "executing": gettext_lazy("It is being carried out."),
    "succeeded": gettext_lazy("Carried out: the run is queued."),
    "failed": gettext_lazy("It did not happen."),
    "blocked": gettext_lazy("It was given up and is not tried again."),
    "recovery_required": gettext_lazy(
        "Its process died after the start. Nothing is done again; evidence of what happened is looked for."
    ),
}
MANUAL = gettext_lazy("Its process died after the start, and nothing tells what happened: a person must say.")
_KNOWN_REASONS = dict((*APPROVE_REASONS, *REJECT_REASONS, *RECOVER_REASONS))


def reason(code: str | None) -> str:
    """A reason in words where the panel offers it, else its code."""
    return str(_KNOWN_REASONS.get(code or "", code or ""))


def lapse(code: str | None) -> str:
    """What ended an open request by itself."""
    return str(REASONS.get(code or "", code or ""))


def sentence(seen: Seen, execution: SeenExecution | None) -> str:
    """How a request stands, in one sentence."""
    if seen.reason is not None:
        return _("Nothing can come of it any more. %(reason)s") % {"reason": lapse(seen.reason)}
    if execution is not None:
        control = getattr(execution.execution, "control", None)
        if control is not None and control.status == "manual_required":
            return str(MANUAL)
        return str(EXECUTIONS[execution.status])
    if seen.status == "pending":
        return _("Nothing has happened yet: it waits for a decision.")
    if seen.status == "rejected":
        return _("Rejected: nothing has happened, and nothing will.")
    return _("Approved; it is about to be handed over.")
