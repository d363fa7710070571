"""The audit log of a project: who did what, to what, when, and the proof that nothing was changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.audit import queries as audit
from apps.audit.models import AuditEntry
from apps.panel import audit_words, queries
from apps.panel.page import Action, Page
from apps.projects.models import Project
from apps.runs.models import Run
from apps.tasks.models import Task
from apps.triggers.models import Trigger


@dataclass(frozen=True)
class Row:
    """An entry with the name of who did it and what it was done to, where that can be looked at."""

    entry: AuditEntry
    who: str
    act: str
    what: str
    url: str
    origin: str
    facts: list[tuple[str, Any]]


class AuditLog(Page):
    permissions = {"GET": "policy.manage"}
    template = "panel/audit.html"
    section = "audit"
    title = gettext_lazy("Audit log")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        wanted = request.GET.get("act", "")
        wanted = wanted if wanted in audit_words.ACTS else ""
        page = audit.page(self.project.pk, action=wanted or None, cursor=request.GET.get("cursor"))
        acts = sorted(
            ((code, str(word)) for code, word in audit_words.ACTS.items()), key=lambda pair: pair[1]
        )
        return self.show(page=page, rows=rows_of(self.project, page.items), acts=acts, act=wanted)


class CheckChain(Action):
    """Walks the whole chain now and says what it found."""

    permissions = {"POST": "policy.manage"}

    def act(self, p: str) -> HttpResponse:
        verdict = audit.verify(self.project.pk)
        if verdict.valid:
            self.say(_("The chain is whole: checked to #%(at)d.") % {"at": verdict.checked_through})
        else:
            self.warn(_("The chain is broken at entry #%(at)s.") % {"at": verdict.first_broken})
        return self.after(p=p)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:audit", kwargs["p"])


def rows_of(project: Project, entries: list[AuditEntry]) -> list[Row]:
    """Entries with the names of people, tasks and runs; four queries."""
    people = queries.names([*(entry.actor_id for entry in entries), *_ids(entries, "user")])
    named = _named(project, entries) | {("user", one): (name, "") for one, name in people.items()}
    found = []
    for entry in entries:
        unknown = (f"{entry.subject_type} {entry.subject_id}", "")
        what, url = named.get((entry.subject_type, entry.subject_id), unknown)
        facts = [pair for pair in sorted(entry.metadata.items()) if pair[1] not in (None, "", [], {})]
        act, origin = audit_words.act(entry.action), audit_words.origin(entry.origin)
        found.append(Row(entry, people.get(entry.actor_id, ""), act, what, url, origin, facts))
    return found


def _named(project: Project, entries: list[AuditEntry]) -> dict[tuple[str, str], tuple[str, str]]:
    """Name and address of what entries speak of, by its kind and id; a trigger goes by its task."""
    runs = Run.objects.filter(project_id=project.pk, pk__in=_uuids(entries, "run"))
    triggers = Trigger.objects.filter(project_id=project.pk, pk__in=_uuids(entries, "trigger"))
    tasks = Task.objects.filter(project_id=project.pk, pk__in=_uuids(entries, "task"))

    def address(task: Task) -> str:
        return reverse("panel:task", args=[project.slug, task.pk])

    found = {("run", str(run.pk)): (run.task_name, reverse("panel:run", args=[run.pk])) for run in runs}
    found |= {("task", str(task.pk)): (task.name, address(task)) for task in tasks}
    found |= {
        ("trigger", str(one.pk)): (one.task.name, address(one.task))
        for one in triggers.select_related("task")
    }
    return found | {("project", project.pk): (project.name, "")}


def _ids(entries: list[AuditEntry], kind: str) -> list[str]:
    return [entry.subject_id for entry in entries if entry.subject_type == kind]


def _uuids(entries: list[AuditEntry], kind: str) -> list[str]:
    return [one for one in _ids(entries, kind) if len(one) == 36]
