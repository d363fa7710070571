"""Applications, agents and workers: subjects that are no people, each with credentials of its own."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.access import queries
from apps.access.models import ApiToken, Application
from apps.access.services import create_application, update_application
from apps.access.services.applications import TYPES
from apps.core.errors import DomainError, InvalidInput, NotFound
from apps.identity.principals import PolicySubject
from apps.panel.form_values import version
from apps.panel.page import ADMINISTRATOR, ORIGIN, Action, Page
from apps.panel.views.tokens import RevokeToken, RotateToken, Tokens
from apps.projects.queries import owned_alone, roles_of


class ApplicationList(Page):
    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    fresh = True
    template = "panel/applications.html"
    section = "applications"
    title = gettext_lazy("Applications and agents")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.list_page()

    def post(self, request: HttpRequest) -> HttpResponse:
        try:
            row = create_application(
                request.POST.get("type", ""),
                request.POST.get("name", ""),
                request.POST.get("description", ""),
                actor=self.visitor.principal.subject,
                origin=ORIGIN,
            )
        except InvalidInput as refusal:
            return self.list_page(refusal.status, sent=request.POST, errors=refusal.fields)
        self.say(_("Made: %(name)s. Give it a role in a project and a token next.") % {"name": row.name})
        return HttpResponseRedirect(reverse("panel:application", args=[row.pk]))

    def list_page(self, status: int = 200, **context: Any) -> HttpResponse:
        """All of them, with the form beneath."""
        page = queries.page_applications(cursor=self.request.GET.get("cursor"))
        return self.show(status, page=page, types=[str(kind) for kind in TYPES], **context)


class _OfApplication:
    """What pages of one application share."""

    kwargs: dict[str, Any]

    @cached_property
    def application(self) -> Application:
        """The application of the address; raises NotFound."""
        row = queries.find_application(self.kwargs["application"])
        if row is None:
            raise NotFound
        return row

    def owner(self) -> PolicySubject:
        """Whose tokens."""
        return PolicySubject(self.application.subject.type, self.application.pk)


class _ApplicationPage(_OfApplication, Tokens):
    template = "panel/application.html"
    section = "applications"

    def show(self, status: int = 200, template: str = "", **context: Any) -> HttpResponse:
        """The page, always with the application itself."""
        about = {
            "title": self.application.name,
            "application": self.application,
            "roles": roles_of(self.owner()),
            "alone": owned_alone(self.owner()) if self.application.subject.status == "active" else [],
        }
        return super().show(status, template, **{**about, **context})


class ShowApplication(_ApplicationPage):
    """What it is, what it may do where, and its credentials."""

    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}

    def kind(self, request: HttpRequest) -> str:
        """A token or a client secret."""
        return ApiToken.Kind.CLIENT if request.POST.get("kind") == "client" else ApiToken.Kind.TOKEN


class RotateApplicationToken(_ApplicationPage, RotateToken):
    permissions = {"POST": ADMINISTRATOR}


class RevokeApplicationToken(_OfApplication, RevokeToken):
    permissions = {"POST": ADMINISTRATOR}

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:application", args=[kwargs["application"]]))


class ChangeApplication(_OfApplication, Action):
    """Renames, enables or disables."""

    permissions = {"POST": ADMINISTRATOR}
    fresh = True

    def act(self, application: str) -> HttpResponse:
        post = self.request.POST
        status = {"enable": "active", "disable": "disabled"}.get(post.get("change", ""))
        try:
            update_application(
                application,
                version(self.request),
                name=post.get("name") if status is None else None,
                description=post.get("description") if status is None else None,
                status=status,
                leave_ownerless=post.get("leave_ownerless") == "1",
                actor=self.visitor.principal.subject,
                origin=ORIGIN,
            )
        except DomainError as refusal:
            if not 400 <= refusal.status < 500 or isinstance(refusal, NotFound):
                raise
            self.complain(refusal)
            return self.after(application=application)
        self.say(_("Disabled: its tokens stopped at once.") if status == "disabled" else _("Saved."))
        return self.after(application=application)

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:application", args=[kwargs["application"]]))
