"""Projects, and who may do what in them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.access.queries import application_named, find_account, find_application
from apps.core import ids
from apps.core.errors import DomainError, InvalidInput
from apps.identity.principals import PolicySubject
from apps.panel import queries, words
from apps.panel.page import ADMINISTRATOR, ORIGIN, SIGNED_IN, Action, Page
from apps.projects import queries as projects
from apps.projects.models import Role
from apps.projects.services.lifecycle import create_project, update_project
from apps.projects.services.roles import change_role
from apps.triggers import services as triggers


class ProjectList(Page):
    """The visitor's projects; instance administrators make new ones here."""

    permissions = {"GET": SIGNED_IN, "POST": ADMINISTRATOR}
    template = "panel/projects.html"
    section = "projects"
    title = gettext_lazy("Projects")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.list_page()

    def post(self, request: HttpRequest) -> HttpResponse:
        name, slug = request.POST.get("name", ""), request.POST.get("slug", "")
        try:
            project = create_project(self.visitor.principal.subject, name=name, slug=slug, origin=ORIGIN)
        except DomainError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            errors = getattr(refusal, "fields", None) or {"slug": [refusal.detail]}
            return self.list_page(refusal.status, name=name, slug=slug, errors=errors)
        self.say(_("Made: %(name)s. You are its owner.") % {"name": project.name})
        return HttpResponseRedirect(reverse("panel:project", args=[project.slug]))

    def list_page(self, status: int = 200, **context: Any) -> HttpResponse:
        """The list with the form beneath."""
        rows = [(project, self.visitor.roles[project.pk]) for project in self.visitor.projects]
        return self.show(status, rows=rows, **context)


class ShowProject(Page):
    """People and roles of one project, and its settings for owners."""

    permissions = {"GET": "project.read", "POST": "project.manage"}
    template = "panel/project.html"
    section = "roles"

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        history = request.GET.get("history") == "1"
        find = projects.page_history if history else projects.page_bindings
        page = find(self.project.pk, cursor=request.GET.get("cursor"))
        people = queries.names(
            [*(row.subject_id for row in page.items), *(row.changed_by_id for row in page.items)]
        )
        rows = [
            (row, people.get(row.subject_id, row.subject_id), people.get(row.changed_by_id, ""))
            for row in page.items
        ]
        owner = self.visitor.roles[self.project.pk] == Role.OWNER
        roles = [
            (name, word, words.ROLE_HELP[name])
            for name, word in words.ROLES.items()
            if owner or name != Role.OWNER
        ]
        return self.show(
            title=self.project.name, page=page, rows=rows, history=history, roles=roles, owner=owner
        )

    def post(self, request: HttpRequest, p: str) -> HttpResponse:
        try:
            project = update_project(
                self.grant,
                _number(request, "version"),
                name=request.POST.get("name", ""),
                slug=request.POST.get("slug", ""),
            )
        except DomainError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            self.complain(refusal)
            return self.back("panel:project", p)
        self.say(_("Saved."))
        return HttpResponseRedirect(reverse("panel:project", args=[project.slug]))


class ChangeRole(Action):
    """Grants, changes or revokes a role; revoking goes on in an archived project."""

    permissions = {"POST": "policy.manage"}
    while_archived = frozenset({"POST"})
    fresh = True

    def act(self, p: str) -> HttpResponse:
        role = self.request.POST.get("role") or None
        if role is not None and role not in Role.values:
            raise InvalidInput.field("role", _("Not a role."))
        subject, name = self._subject()
        change_role(
            self.grant,
            subject,
            role,
            expected_version=self._expected(subject),
            mutation_id=ids.token(16),
        )
        if role is None:
            self.say(_("Revoked: %(name)s has no role here any more.") % {"name": name})
        else:
            self.say(_("Granted: %(name)s is %(role)s.") % {"name": name, "role": words.ROLES[role]})
        return self.after(p=p)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:project", kwargs["p"])

    def _subject(self) -> tuple[PolicySubject, str]:
        """From a row the pair it shows, from the form the account or application of that name."""
        post = self.request.POST
        if post.get("subject_id"):
            subject = PolicySubject(post.get("subject_type", ""), post["subject_id"])
            return subject, queries.names([subject.id]).get(subject.id, subject.id)
        name = post.get("username", "").strip()
        user = find_account(name)
        if user is not None:
            return PolicySubject("user", user.subject_id), user.username
        application = find_application(name) or application_named(name)
        if application is None:
            raise InvalidInput.field("username", _("There is no account or application of this name."))
        return PolicySubject(application.subject.type, application.pk), application.name

    def _expected(self, subject: PolicySubject) -> int:
        """From a row the version it shows; a person who is named anew has the newest there is."""
        if self.request.POST.get("version"):
            return _number(self.request, "version")
        newest = projects.current_bindings().filter(
            project=self.project.pk, subject_type=subject.type, subject_id=subject.id
        )
        return newest.values_list("version", flat=True).first() or 0


class ArchiveProject(Action):
    """Archives (asking once); only owners."""

    permissions = {"GET": "project.manage", "POST": "project.manage"}
    template = "panel/project_archive.html"
    section = "roles"

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        return self.show(title=_("Archive %(name)s?") % {"name": self.project.name})

    def act(self, p: str) -> HttpResponse:
        triggers.archive_project(self.grant, _number(self.request, "version"))
        self.say(_("Archived: %(name)s.") % {"name": self.project.name})
        return HttpResponseRedirect(reverse("panel:project", args=[p]))

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:project", kwargs["p"])


class RestoreProject(Action):
    permissions = {"POST": "project.manage"}
    while_archived = frozenset({"POST"})

    def act(self, p: str) -> HttpResponse:
        triggers.restore_project(self.grant, _number(self.request, "version"))
        self.say(_("Restored: %(name)s.") % {"name": self.project.name})
        return self.after(p=p)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:project", kwargs["p"])


def _number(request: HttpRequest, name: str) -> int:
    text = request.POST.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput.field(name, _("The form is not complete; reload the page."))
    return int(text)
