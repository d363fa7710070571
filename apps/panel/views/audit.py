"""The audit logs of projects and of the instance: who did what, to what, when; and the proof that none was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.access import queries as access
from apps.audit import queries as audit
from apps.audit.api import exported
from apps.audit.models import AuditEntry
from apps.audit.queries import Wanted
from apps.audit.services import INSTANCE
from apps.core import pages
from apps.identity.models import SubjectType
from apps.panel import audit_words, queries
from apps.panel.page import ADMINISTRATOR, Action, Page
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
    """The trail of a project, by act, person and day."""

    permissions = {"GET": "policy.manage"}
    while_archived = frozenset({"GET"})
    template = "panel/audit.html"
    section = "audit"
    title = gettext_lazy("Audit log")

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        asked = {name: request.GET.get(name, "").strip()[:255] for name in ("act", "who", "since", "until")}
        wanted, wrong = _wanted(asked)
        if wanted is not None and request.GET.get("export") == "1":
            return exported(audit.walk(self.scope, wanted), "audit.jsonl")
        page = (
            pages.Page([], None, None)
            if wanted is None
            else audit.page(self.scope, wanted, cursor=request.GET.get("cursor"))
        )
        acts = sorted(
            ((code, str(word)) for code, word in audit_words.ACTS.items()), key=lambda pair: pair[1]
        )
        return self.show(
            page=page,
            rows=rows_of(self.about, page.items),
            acts=acts,
            asked=asked,
            wrong=wrong,
            check=self.check_url,
        )

    @property
    def scope(self) -> str:
        """Whose trail."""
        return self.project.pk

    @property
    def about(self) -> Project | None:
        """The project whose tasks and runs entries speak of."""
        return self.project

    @property
    def check_url(self) -> str:
        """Where the chain is checked."""
        return reverse("panel:audit-check", args=[self.project.slug])


class InstanceAuditLog(AuditLog):
    """The trail of the installation: sign-ins, people, tokens, applications, workers."""

    permissions = {"GET": ADMINISTRATOR}
    section = "instance-audit"
    scope = INSTANCE
    about = None

    @property
    def check_url(self) -> str:
        """Where the chain is checked."""
        return reverse("panel:instance-audit-check")


class CheckChain(Action):
    """Walks the whole chain now and says what it found."""

    permissions = {"POST": "policy.manage"}
    while_archived = frozenset({"POST"})

    def act(self, **kwargs: Any) -> HttpResponse:
        verdict = audit.verify(self.scope)
        if verdict.valid:
            self.say(_("The chain is whole: checked to #%(at)d.") % {"at": verdict.checked_through})
        else:
            self.warn(_("The chain is broken at entry #%(at)s.") % {"at": verdict.first_broken})
        return self.after(**kwargs)

    @property
    def scope(self) -> str:
        """Whose chain."""
        return self.project.pk

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:audit", kwargs["p"])


class CheckInstanceChain(CheckChain):
    permissions = {"POST": ADMINISTRATOR}
    scope = INSTANCE

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:instance-audit")


def _wanted(asked: Mapping[str, str]) -> tuple[Wanted | None, str]:
    """What the fields ask for; None with a sentence for what nothing can be found by."""
    act = asked["act"] if asked["act"] in audit_words.ACTS else None
    since, until = (_midnight(asked[name]) for name in ("since", "until"))
    if (since is None) != (not asked["since"]) or (until is None) != (not asked["until"]):
        return None, _("A day like 2026-11-29 is expected.")
    who = None
    if asked["who"]:
        who = _subject_id(asked["who"])
        if who is None:
            return None, _("There is no account or application of this name.")
    # The last day counts.
    return Wanted(act, who, since, None if until is None else until + timedelta(days=1)), ""


def _midnight(text: str) -> datetime | None:
    """When a day began in the zone that the page is shown in."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    if not 1970 <= day.year < 9990:
        return None
    return datetime(day.year, day.month, day.day, tzinfo=timezone.get_current_timezone()).astimezone(UTC)


def _subject_id(name: str) -> str | None:
    """The subject of a name, or an id itself; `system` acts have ids of their own."""
    user = access.find_account(name)
    if user is not None:
        return user.subject_id
    found = access.find_application(name) or access.application_named(name)
    if found is not None:
        return str(found.pk)
    return name if AuditEntry.objects.filter(actor_id=name).exists() else None


def rows_of(project: Project | None, entries: list[AuditEntry]) -> list[Row]:
    """Entries with the names of people and applications, and in a project of tasks and runs; five queries, or two."""
    subjects = [entry for entry in entries if entry.subject_type in SubjectType.values]
    people = queries.names([*(one.actor_id for one in entries), *(one.subject_id for one in subjects)])
    named = {} if project is None else _named(project, entries)
    named |= {
        (one.subject_type, one.subject_id): (people[one.subject_id], "")
        for one in subjects
        if one.subject_id in people
    }
    links = [entry.subject_id for entry in entries if entry.subject_type == "invitation"]
    for pk, name in access.invited_names(links).items():
        named["invitation", pk] = (_("link for %(name)s") % {"name": name or _("any name")}, "")
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
    found |= {
        ("approval", pk): (pk, reverse("panel:approval", args=[pk])) for pk in _ids(entries, "approval")
    }
    return found | {("project", project.pk): (project.name, "")}


def _ids(entries: list[AuditEntry], kind: str) -> list[str]:
    return [entry.subject_id for entry in entries if entry.subject_type == kind]


def _uuids(entries: list[AuditEntry], kind: str) -> list[str]:
    return [one for one in _ids(entries, kind) if len(one) == 36]
