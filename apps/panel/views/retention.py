"""What a project or a task keeps: its rule, what it would remove now, and the bills of what it removed."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from apps.artifacts.models import Removal, RetentionRule
from apps.artifacts.retention import listing, queries, rules
from apps.artifacts.retention.preview import preview
from apps.core.errors import DomainError, InvalidInput
from apps.panel.page import Action, Page
from apps.panel.views.run import RunPage
from apps.runs.services import holds
from apps.tasks import queries as tasks
from apps.tasks.models import Task

_NUMBER = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,6})?")
# A field of the form, what its number stands for, and the field of the rule.
UNITS = {
    "days": ("keep_ms", 86_400_000),
    "most": ("keep_most", 1),
    "megabytes": ("keep_bytes", 1_048_576),
    "least": ("keep_least", 1),
}
FIELDS = {rule: form for form, (rule, _unit) in UNITS.items()}

RULES = {
    Removal.AGE: pgettext_lazy("retention rule", "Age"),
    Removal.PRESSURE: pgettext_lazy("retention rule", "Disk was short"),
    Removal.COUNT: pgettext_lazy("retention rule", "At most so many"),
    Removal.BYTES: pgettext_lazy("retention rule", "At most so large"),
    Removal.ORPHAN: pgettext_lazy("retention rule", "Files that nobody knew"),
    Removal.HISTORY: pgettext_lazy("retention rule", "Old details, folded"),
    Removal.SKIPS: pgettext_lazy("retention rule", "Records of what did not run"),
}


class Retention(Page):
    """The rule of a project; with a task in the address that of the task. Trying one changes nothing."""

    permissions = {"GET": "project.read", "POST": "project.manage"}
    template = "panel/retention.html"
    section = "retention"
    title = gettext_lazy("Retention")

    def get(self, request: HttpRequest, p: str, t: str | None = None) -> HttpResponse:
        task = self.task(t)
        return self.page(task, rules.find(self.project.pk, task.pk if task else None))

    def post(self, request: HttpRequest, p: str, t: str | None = None) -> HttpResponse:
        task = self.task(t)
        task_id = task.pk if task else None
        rule = rules.find(self.project.pk, task_id)
        try:
            limits = rules.check(_values(request))
            if request.POST.get("do") == "try":
                return self.page(task, rule, found=preview(self.grant, limits, task_id))
            rules.change(self.grant, _version(request), limits, task_id)
        except DomainError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            errors = {FIELDS.get(name, name): texts for name, texts in getattr(refusal, "fields", {}).items()}
            if not errors:
                self.complain(refusal)
            return self.page(task, rule, refusal.status, errors=errors)
        self.say(_("Saved. It holds from the next round on."))
        return HttpResponseRedirect(request.path)

    def task(self, reference: str | None) -> Task | None:
        """The task of the address; raises NotFound."""
        return None if reference is None else tasks.find(self.project.pk, reference)

    def page(self, task: Task | None, rule: RetentionRule, status: int = 200, **context: Any) -> HttpResponse:
        """The form with what was typed or what is stored, and what there is."""
        holding = rules.holding(self.project.pk, task.pk if task else None)
        post = self.request.POST if self.request.method == "POST" else None
        typed = {
            form: post.get(form, "") if post else _shown(getattr(rule, column), unit)
            for form, (column, unit) in UNITS.items()
        }
        if task is None:
            receipts = queries.receipts(self.project.pk, limit=30, cursor=self.request.GET.get("cursor"))
            context |= {
                "page": receipts,
                "bills": [(row, RULES[Removal(row.rule)]) for row in receipts.items],
                "largest": queries.largest(self.project.pk),
                "own": queries.tasks_with_rules(self.project.pk),
            }
        found = context.get("found")
        return self.show(
            status,
            task=task,
            rule=rule,
            typed=typed,
            holding=holding,
            holding_days=_shown(holding.keep_ms, 86_400_000),
            short_days=_shown(holding.pressure_ms, 86_400_000),
            history_days=_shown(holding.history_ms, 86_400_000),
            usage=listing.usage(self.project.pk, task.pk if task else None),
            by_rule=[(RULES[Removal(name)], count) for name, count in found.by_rule.items()] if found else [],
            **context,
        )


class PinRun(RunPage, Action):
    """Keeps a run whole, or lets it go again."""

    permissions = {"POST": holds.PERMISSION}
    pinned = True

    def act(self, run: UUID) -> HttpResponse:
        if self.pinned:
            holds.pin_run(self.grant, run, self.request.POST.get("reason", "").strip())
            self.say(_("Kept: no rule removes this run's log or details."))
        else:
            holds.unpin_run(self.grant, run)
            self.say(_("No longer kept: the rules decide."))
        return self.after(run=run)

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:run", args=[kwargs["run"]]))


def _values(request: HttpRequest) -> dict[str, int | None]:
    wrong: dict[str, list[Any]] = {}
    values: dict[str, int | None] = {}
    for form, (column, unit) in UNITS.items():
        text = request.POST.get(form, "").strip()
        if text and not _NUMBER.fullmatch(text):
            wrong[column] = [_("A number is expected.")]
            continue
        values[column] = round(Decimal(text.replace(",", ".")) * unit) if text else None
    if wrong:
        raise InvalidInput(fields=wrong)
    return values


def _shown(value: int | None, unit: int) -> str:
    if value is None:
        return ""
    return f"{(Decimal(value) / unit).quantize(Decimal('0.000001')).normalize():f}"


def _version(request: HttpRequest) -> int:
    text = request.POST.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput(_("The form is not complete; reload the page."))
    return int(text)
