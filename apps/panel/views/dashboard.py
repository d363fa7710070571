"""The dashboard: what runs, what waits, what failed, or the first three steps."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.translation import pgettext_lazy

from apps.panel import queries
from apps.panel.page import SIGNED_IN, Page
from apps.projects.policy import authorize


class Dashboard(Page):
    permissions = {"GET": SIGNED_IN}
    template = "panel/dashboard.html"
    part = "panel/dashboard_live.html"
    section = "dashboard"
    title = pgettext_lazy("navigation", "Dashboard")

    def get(self, request: HttpRequest) -> HttpResponse:
        project = self.visitor.first_project
        if project is None:
            return self.show(overview=None)
        wanted = request.GET.get("project")
        if wanted:
            project = self.visitor.project(wanted)
        self.project = project
        authorize(self.visitor.principal, project.pk, "run.read", origin="panel")
        found = queries.overview(project.pk)
        first_minute = found.last_run is None or found.first_task is None
        # Until scripts run as a user of their own, whoever edits a task can read what the panel can.
        one_user = settings.RUN_AS is None and self.may("task.update") and queries.is_shared(project.pk)
        return self.show(overview=found, first_minute=first_minute, one_user=one_user)
