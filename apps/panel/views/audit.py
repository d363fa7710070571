"""The audit log of a project: who did what, to what, when."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy

from apps.audit import queries as audit
from apps.panel import queries
from apps.panel.page import Page


class AuditLog(Page):
    permissions = {"GET": "policy.manage"}
    template = "panel/audit.html"
    section = "audit"
    title = gettext_lazy("Audit log")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        page = audit.page(self.project.pk, cursor=request.GET.get("cursor"))
        people = queries.names(entry.actor_id for entry in page.items)
        rows = [(entry, people.get(entry.actor_id, "")) for entry in page.items]
        return self.show(page=page, rows=rows)
