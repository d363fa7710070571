"""Links by which somebody new comes in: made, listed while they are open, revoked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from apps.access import queries as access
from apps.access.addresses import invitation_link
from apps.access.services import invite, revoke_invitation
from apps.core.errors import DomainError, InvalidInput
from apps.panel import queries, words
from apps.panel.page import ADMINISTRATOR, ORIGIN, Action, Page
from apps.projects import policy
from apps.projects.models import Project, Role
from apps.projects.policy import Grant

LIFETIMES = (
    ("1", pgettext_lazy("lifetime", "1 day")),
    ("7", pgettext_lazy("lifetime", "7 days")),
    ("30", pgettext_lazy("lifetime", "30 days")),
)


class Invitations(Page):
    """For instance administrators: anybody new, with a role in a project where they may give it themselves."""

    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    fresh = True
    template = "panel/invitations.html"
    section = "people"
    title = gettext_lazy("Invitations")

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return self.list_page()

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            made = invite(
                self.visitor.principal.subject,
                username=request.POST.get("username", "").strip()[:4096],
                administrator=self.offers_administration and request.POST.get("administrator") == "1",
                grant=self.grant_for(request.POST.get("role") or None),
                role=request.POST.get("role") or None,
                lasts=_lifetime(request),
                origin=ORIGIN,
            )
        except DomainError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            errors = getattr(refusal, "fields", None) or {"username": [refusal.detail]}
            return self.list_page(refusal.status, sent=request.POST, errors=errors)
        return self.list_page(201, made=made.invitation, link=invitation_link(request, made.secret))

    offers_administration = True

    def grant_for(self, role: str | None) -> Grant | None:
        """The right to give the role that was chosen; raises InvalidInput where it has no project."""
        if role is None:
            return None
        wanted = self.request.POST.get("project", "")
        if wanted not in {one.pk for one in self.projects}:
            raise InvalidInput.field("project", _("Choose the project of the role."))
        return policy.authorize(self.visitor.principal, wanted, "policy.manage", origin=ORIGIN)

    @cached_property
    def projects(self) -> list[Project]:
        """Where the visitor gives roles."""
        return [
            one
            for one in self.visitor.projects
            if one.status == Project.Status.ACTIVE and self.visitor.may(one, "policy.manage")
        ]

    def project_id(self) -> str | None:
        """Whose invitations are listed; None for all."""
        return None

    def list_page(self, status: int = 200, **context: Any) -> HttpResponse:
        """The open invitations and the form; after making one its link."""
        page = access.page_invitations(
            project_id=self.project_id(), cursor=self.request.GET.get("cursor") or None
        )
        names = queries.names(row.invited_by_id for row in page.items)
        owner = any(self.visitor.roles[one.pk] == Role.OWNER for one in self.projects)
        return self.show(
            status,
            page=page,
            rows=[(row, names.get(row.invited_by_id, row.invited_by_id)) for row in page.items],
            projects=self.projects,
            roles=[(name, word) for name, word in words.ROLES.items() if owner or name != Role.OWNER],
            lifetimes=LIFETIMES,
            **context,
        )


class ProjectInvitations(Invitations):
    """For whoever gives roles in a project: somebody new, with a role in it."""

    permissions = {"GET": "policy.manage", "POST": "policy.manage"}
    while_archived = frozenset({"GET"})
    section = "roles"
    offers_administration = False

    def grant_for(self, role: str | None) -> Grant | None:
        """The right that this page was opened with."""
        if role is None:
            raise InvalidInput.field("role", _("Choose a role."))
        return self.grant

    @cached_property
    def projects(self) -> list[Project]:
        """The project of this page."""
        return [self.project] if self.project.status == Project.Status.ACTIVE else []

    def project_id(self) -> str | None:
        """Only this project's."""
        return self.project.pk


class RevokeInvitation(Action):
    permissions = {"POST": ADMINISTRATOR}

    def act(self, invitation: UUID, **kwargs: Any) -> HttpResponse:
        project = getattr(self, "project", None)
        revoke_invitation(
            invitation,
            project_id=None if project is None else project.pk,
            actor=self.visitor.principal.subject,
            origin=ORIGIN,
        )
        self.say(_("Revoked: the link opens nothing any more."))
        return self.after(**kwargs)

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:invitations"))


class RevokeProjectInvitation(RevokeInvitation):
    permissions = {"POST": "policy.manage"}
    while_archived = frozenset({"POST"})

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:project-invitations", args=[kwargs["p"]]))


def _lifetime(request: HttpRequest) -> timedelta:
    days = request.POST.get("lifetime", "")
    if days not in {value for value, _word in LIFETIMES}:
        raise InvalidInput.field("lifetime", _("Choose how long it works."))
    return timedelta(days=int(days))
