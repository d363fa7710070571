"""The dashboard: what runs, what waits, what failed, or the first three steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.translation import pgettext_lazy

from apps.core import clock, health
from apps.panel import overview, queries
from apps.panel.page import SIGNED_IN, Page, current_project
from apps.projects.models import Project
from apps.projects.policy import authorize
from apps.runs.models import AloneStart
from apps.runs.services import door
from apps.tasks.models import Task
from apps.triggers.queries import stranded

STRANDED = 20
# The dashboard asks every few seconds; what is wrong with the installation may be a little older.
PROBLEMS_S = 15.0
# How long everybody is told that somebody broke the glass, and of how many at once; the audit log has all.
GLASS_SHOWN = timedelta(days=7)
MOST_GLASS = 5


class Dashboard(Page):
    """Two live parts: what is going on, often; the last day and month, once a minute."""

    permissions = {"GET": SIGNED_IN}
    template = "panel/dashboard.html"
    part = "panel/dashboard_live.html"
    parts = {"past": "panel/dashboard_past.html"}
    section = "dashboard"
    title = pgettext_lazy("navigation", "Dashboard")

    def get(self, request: HttpRequest) -> HttpResponse:
        wanted = request.GET.get("project")
        project = self.visitor.project(wanted) if wanted else current_project(request, self.visitor)
        if project is None:
            return self.show(now=None)
        self.project = project
        authorize(self.visitor.principal, project.pk, "run.read", origin="panel")
        part = request.headers.get("X-Part")
        context: dict[str, Any] = {}
        if part != "past":
            now = overview.now(project.pk)
            context |= {"now": now, "first": now.first, "warnings": self.warnings(project)}
        if part == "past" or not part:
            context |= self.past(project)
        elif part:
            context["day"] = overview.day(project.pk)
        return self.show(**context)

    def past(self, project: Project) -> dict[str, Any]:
        """The charts and the leaders of today."""
        past = overview.past(project)
        return {
            "past": past,
            "day": past.day,
            "peak_hours": overview.peak(past.hours),
            "peak_days": overview.peak(past.days),
        }

    def stranded(self, project: Project) -> list[Task]:
        """Tasks that schedules of disabled people start."""
        found = stranded(project.pk, limit=STRANDED).items
        return list({trigger.task_id: trigger.task for trigger in found}.values())

    def glass(self, project: Project) -> list[dict[str, Any]]:
        """What was started lately without an approval, and by whom; one query where nothing was."""
        since = clock.now() - GLASS_SHOWN
        starts = door.alone_starts(project.pk, AloneStart.Kind.BREAK_GLASS, since, MOST_GLASS)
        people = queries.names(start.started_by_id for start in starts) if starts else {}
        return [
            {"start": start, "who": people.get(start.started_by_id, start.started_by_id)} for start in starts
        ]

    def warnings(self, project: Project) -> dict[str, Any]:
        """What somebody should look at."""
        administrator = self.visitor.account.is_superuser
        # Until scripts run as a user of their own, whoever edits a task can read what the panel can.
        one_user = settings.RUN_AS is None and self.may("task.update") and queries.is_shared(project.pk)
        return {
            "one_user": one_user,
            "glass": self.glass(project),
            "installation": health.recent(PROBLEMS_S) if administrator else [],
            "stranded": self.stranded(project) if self.may("task.update") else [],
        }
