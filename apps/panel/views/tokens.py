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
from apps.access.services import create_token, revoke_token, rotate_token
from apps.core import clock, pages
from apps.core.errors import DomainError, InvalidInput
from apps.identity.principals import PolicySubject
from apps.panel.page import ORIGIN, SIGNED_IN, Action, Page
from apps.projects import permissions

LIFETIMES = (
    ("30", pgettext_lazy("lifetime", "30 days")),
    ("90", pgettext_lazy("lifetime", "90 days")),
    ("365", pgettext_lazy("lifetime", "1 year")),
    ("", pgettext_lazy("lifetime", "no end")),
)
PRESETS = (
    ("all", gettext_lazy("All that the role allows, except approvals, people, secrets and tokens")),
    ("read", gettext_lazy("Read only")),
    ("run", gettext_lazy("Read, start and stop runs")),
    ("chosen", gettext_lazy("Only the ones named below")),
)
_READ = ("project.read", "task.read", "run.read", "artifact.read")


class Tokens(Page):
    """Lists and makes the tokens of one subject: the visitor, or an application in a page built on this one."""

    permissions = {"GET": SIGNED_IN, "POST": SIGNED_IN}
    fresh = True
    template = "panel/tokens.html"
    section = "tokens"
    title = gettext_lazy("My tokens")

    def owner(self) -> PolicySubject:
        """Whose tokens."""
        return self.visitor.principal.subject

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return self.list_page()

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            created = create_token(
                self.owner(),
                name=request.POST.get("name", ""),
                scopes=_scopes(request),
                project_id=self._project_id(request),
                expires_at=_expiry(request),
                addresses=request.POST.get("addresses", "")[:4096].replace(",", " ").split(),
                kind=self.kind(request),
                maker=credential(self),
                actor=self.visitor.principal.subject,
                origin=ORIGIN,
            )
        except DomainError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            errors = getattr(refusal, "fields", None) or {"name": [refusal.detail]}
            return self.list_page(refusal.status, sent=request.POST, errors=errors)
        return self.list_page(201, created=created)

    def kind(self, request: HttpRequest) -> str:
        """People have tokens only."""
        return ApiToken.Kind.TOKEN

    def _project_id(self, request: HttpRequest) -> str | None:
        wanted = request.POST.get("project")
        return self.visitor.project(wanted).pk if wanted else None

    def list_page(self, status: int = 200, **context: Any) -> HttpResponse:
        """The tokens, the form, and after making one its secret."""
        owner = self.owner()
        kept = (ApiToken.Kind.TOKEN, ApiToken.Kind.CLIENT)
        page = pages.paginate(
            ApiToken.objects.filter(subject_id=owner.id, kind__in=kept).select_related("project"),
            [pages.moment("created_at"), pages.identifier()],
            kind="panel.tokens",
            scope={"subject": owner.id},
            cursor=self.request.GET.get("cursor"),
        )
        return self.show(
            status,
            page=page,
            now=clock.now(),
            presets=PRESETS,
            lifetimes=LIFETIMES,
            scopes=sorted(permissions.PERMISSIONS),
            **context,
        )


class RotateToken(Tokens):
    """A new secret, shown once; the one before works for another day."""

    permissions = {"POST": SIGNED_IN}

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        created = rotate_token(
            self.owner(),
            kwargs["token"],
            maker=credential(self),
            actor=self.visitor.principal.subject,
            origin=ORIGIN,
        )
        return self.list_page(201, created=created, rotated=True)


class RevokeToken(Action):
    permissions = {"POST": SIGNED_IN}

    def owner(self) -> PolicySubject:
        """Whose token."""
        return self.visitor.principal.subject

    def act(self, token: UUID, **kwargs: Any) -> HttpResponse:
        actor = self.visitor.principal.subject
        revoke_token(self.owner(), token, maker=credential(self), actor=actor, origin=ORIGIN)
        self.say(_("Revoked; it stopped working at once."))
        return self.after(**kwargs)

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:tokens"))


def credential(page: Page) -> Credential:
    """What a page makes tokens with: a session, which may give all that its person may."""
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
