"""Lists of runs, and of starts that did not happen; the address is the filter."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import pgettext_lazy

from apps.core import pages
from apps.panel import overview, queries, words
from apps.panel.page import Page
from apps.panel.run_question import RunQuestion
from apps.runs import queries as runs
from apps.runs.models import Run, TriggerType
from apps.tasks.models import Task


class RunList(Page):
    """The address is the filter; both ends of the list can be reached."""

    permissions = {"GET": "run.read"}
    template = "panel/runs.html"
    part = "panel/runs_live.html"
    section = "runs"
    title = pgettext_lazy("navigation", "Runs")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        asked = RunQuestion.read(request.GET, self.project.pk)
        if asked.unknown_task:
            page: pages.Page[Run] = pages.Page([], None)
        else:
            page = runs.page(
                self.project.pk,
                asked.filter,
                cursor=request.GET.get("before") or request.GET.get("cursor"),
                backward="before" in request.GET or "oldest" in request.GET,
            )
        context: dict[str, Any] = {"page": page, "rows": queries.run_rows(page.items), "asked": asked}
        if not request.headers.get("X-Part"):
            newest = Task.objects.filter(project_id=self.project.pk, archived_at=None)
            context |= {
                "groups": words.STATUS_GROUPS,
                "triggers": TriggerType.choices,
                "people": queries.people_of(self.project.pk),
                "some_tasks": newest.order_by("-created_at", "-id")[:50],
            }
        if not page.items and asked.narrowed:
            context["day"] = overview.day(self.project.pk)
        return self.show(**context)
