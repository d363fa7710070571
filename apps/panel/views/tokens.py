"""The visitor's own API tokens; a secret is shown once, in the answer that made it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from apps.access.models import ApiToken
from apps.access.scopes import Credential
from apps.access.services import create_token, is_fresh, revoke_token
from apps.core import clock, pages
from apps.core.errors import DomainError, InvalidInput
from apps.panel.page import ORIGIN, SIGNED_IN, Action, Page
from apps.projects import permissions

LIFETIMES = (
    ("30", pgettext_lazy("lifetime", "30 days")),
    ("90", pgettext_lazy("lifetime", "90 days")),
    ("365", pgettext_lazy("lifetime", "1 year")),
    ("", pgettext_lazy("lifetime", "no end")),
)
PRESETS = (
    ("all", gettext_lazy("All that I may do, except approvals, people, secrets and tokens")),
    ("read", gettext_lazy("Read only")),
    ("run", gettext_lazy("Read, start and stop runs")),
    ("chosen", gettext_lazy("Only the ones named below")),
)
_READ = ("project.read", "task.read", "run.read", "artifact.read")


class Tokens(Page):
    permissions = {"GET": SIGNED_IN, "POST": SIGNED_IN}
    template = "panel/tokens.html"
    section = "tokens"
    title = gettext_lazy("My tokens")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.list_page()

    def post(self, request: HttpRequest) -> HttpResponse:
        if not is_fresh(request):
            return self.list_page(403, sent=request.POST)
        try:
            created = create_token(
                self.visitor.principal.subject,
                name=request.POST.get("name", ""),
                scopes=_scopes(request),
                project_id=self._project_id(request),
                expires_at=_expiry(request),
                maker=_session(self),
                origin=ORIGIN,
            )
        except DomainError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            errors = getattr(refusal, "fields", None) or {"name": [refusal.detail]}
            return self.list_page(refusal.status, sent=request.POST, errors=errors)
        return self.list_page(201, created=created)

    def _project_id(self, request: HttpRequest) -> str | None:
        wanted = request.POST.get("project")
        return self.visitor.project(wanted).pk if wanted else None

    def list_page(self, status: int = 200, **context: Any) -> HttpResponse:
        """The tokens, the form, and after making one its secret."""
        page = pages.paginate(
            ApiToken.objects.filter(subject_id=self.visitor.principal.subject.id).select_related("project"),
            [pages.moment("created_at"), pages.identifier()],
            kind="panel.tokens",
            scope={"subject": self.visitor.principal.subject.id},
            cursor=self.request.GET.get("cursor"),
        )
        return self.show(
            status,
            page=page,
            now=clock.now(),
            presets=PRESETS,
            lifetimes=LIFETIMES,
            scopes=sorted(permissions.PERMISSIONS),
            stale_session=not is_fresh(self.request),
            **context,
        )


class RevokeToken(Action):
    permissions = {"POST": SIGNED_IN}

    def act(self, token: UUID) -> HttpResponse:
        revoke_token(self.visitor.principal.subject, token, maker=_session(self), origin=ORIGIN)
        self.say(_("Revoked; it stopped working at once."))
        return HttpResponseRedirect(reverse("panel:tokens"))

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:tokens"))


def _session(page: Page) -> Credential:
    return Credential("session", expires_at=page.visitor.principal.expires_at)


def _scopes(request: HttpRequest) -> list[str]:
    match request.POST.get("preset"):
        case "all":
            return ["*"]
        case "read":
            return list(_READ)
        case "run":
            return [*_READ, "run.start", "run.stop", "run.retry"]
    return request.POST.getlist("scopes")


def _expiry(request: HttpRequest) -> Any:
    days = request.POST.get("lifetime", "")
    if days not in {value for value, _word in LIFETIMES}:
        raise InvalidInput.field("lifetime", _("Choose how long it works."))
    return clock.now() + timedelta(days=int(days)) if days else None
