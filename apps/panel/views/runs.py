"""Lists of runs, and of starts that did not happen; the address is the filter."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from apps.panel import queries, words
from apps.panel.page import Page
from apps.runs import queries as runs
from apps.runs.models import RunStatus, TriggerType
from apps.tasks import queries as tasks


class RunList(Page):
    permissions = {"GET": "run.read"}
    template = "panel/runs.html"
    part = "panel/runs_live.html"
    section = "runs"
    title = pgettext_lazy("navigation", "Runs")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        wanted = [status for status in request.GET.getlist("status") if status in RunStatus.values]
        kind = request.GET.get("trigger", "")
        task = tasks.find(self.project.pk, request.GET["task"]) if request.GET.get("task") else None
        chosen = runs.RunFilter(
            task_id=task.pk if task else None,
            statuses=tuple(dict.fromkeys(wanted)),
            trigger_type=kind if kind in TriggerType.values else None,
        )
        page = runs.page(self.project.pk, chosen, cursor=request.GET.get("cursor"))
        return self.show(
            page=page,
            rows=queries.run_rows(page.items),
            chosen=chosen,
            task=task,
            groups=words.STATUS_GROUPS,
            triggers=TriggerType.choices,
            filtered=bool(wanted or kind or task),
        )


class SkipList(Page):
    permissions = {"GET": "run.read"}
    template = "panel/skips.html"
    section = "skips"
    title = _("Did not run")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        page = runs.skips(self.project.pk, cursor=request.GET.get("cursor"))
        return self.show(page=page, rows=queries.skip_rows(page.items))
