"""What every page of the panel has in common: the visitor, the project, the right it needs, the frame."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotModified,
    HttpResponseRedirect,
)
from django.shortcuts import render, resolve_url
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views import View

from apps.access.services.sessions import FRESH_MINUTES
from apps.approvals import queries as approvals
from apps.approvals.services.deciding import PERMISSION as DECIDE
from apps.core import clock
from apps.core.errors import DomainError, Forbidden, InvalidInput, NotFound
from apps.panel import confirming, navigation, queries, trouble
from apps.panel.visitors import Visitor, visitor_of, zone_of
from apps.projects import approval_policy, policy
from apps.projects.models import Project

ORIGIN = "panel"
SIGNED_IN = "signed-in"
ADMINISTRATOR = "administrator"
PROJECT = "ql_project"


class Page(View):
    """One page or one action of a signed-in person.

    `permissions` names for each method the project permission it needs, or SIGNED_IN, or ADMINISTRATOR; a method
    that is not named is refused. With a project permission the URL carries `p`, or `locate` finds the project.
    `while_archived` names the methods that go on in an archived project although they are no reads.
    With `fresh` a POST needs a person who proved within `fresh_minutes` who they are; `fresh_because` says why.
    `part` is the template of what the page keeps up to date; a page with several names them in `parts`.
    """

    permissions: ClassVar[dict[str, str]] = {}
    while_archived: ClassVar[frozenset[str]] = frozenset()
    fresh: ClassVar[bool] = False
    fresh_minutes: ClassVar[int] = FRESH_MINUTES
    fresh_because: ClassVar[str | Promise] = ""
    template: ClassVar[str] = ""
    part: ClassVar[str] = ""
    parts: ClassVar[dict[str, str]] = {}
    section: ClassVar[str] = ""
    title: ClassVar[str | Promise] = ""

    visitor: Visitor
    project: Project
    grant: policy.Grant

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            found = visitor_of(request)
            if found is None:
                return self.to_sign_in(request)
            self.visitor = found
            _refuse_nul(request, kwargs)
            with timezone.override(zone_of(request)):
                self.decide(request, **kwargs)
                asked = confirming.ask(self) if self.fresh and request.method == "POST" else None
                response = super().dispatch(request, *args, **kwargs) if asked is None else asked
        except DomainError as error:
            return trouble.page(request, error)
        add_never_cache_headers(response)
        self.remember(response)
        return response

    def remember(self, response: HttpResponseBase) -> None:
        """Pages that belong to no project stay with the one that was looked at last."""
        project = getattr(self, "project", None)
        if (
            project is None
            or len(self.visitor.projects) < 2
            or self.request.COOKIES.get(PROJECT) == project.pk
        ):
            return
        response.set_cookie(
            PROJECT,
            project.pk,
            max_age=365 * 86_400,
            path=settings.SESSION_COOKIE_PATH,
            samesite="Lax",
            secure=settings.SECURE,
            httponly=True,
        )

    def decide(self, request: HttpRequest, **kwargs: Any) -> None:
        """Asks the policy before anything else runs; raises NotFound (masked) or Forbidden."""
        method = "GET" if request.method == "HEAD" else request.method or ""
        needed = self.permissions.get(method)
        if needed is None:
            if method in ("GET", "POST"):
                raise NotFound
            return  # View answers 405
        if needed == ADMINISTRATOR and not self.visitor.account.is_superuser:
            raise Forbidden
        if needed in (SIGNED_IN, ADMINISTRATOR):
            return
        self.project = self.locate(**kwargs)
        self.grant = policy.authorize(
            self.visitor.principal,
            self.project.pk,
            needed,
            origin=ORIGIN,
            while_archived=method in self.while_archived,
        )

    def locate(self, **kwargs: Any) -> Project:
        """The project of the address; raises NotFound."""
        return self.visitor.project(kwargs["p"])

    def also(self, permission: str) -> policy.Grant:
        """The grant of a second permission that this request needs."""
        return policy.authorize(self.visitor.principal, self.project.pk, permission, origin=ORIGIN)

    def may(self, permission: str) -> bool:
        """Whether the visitor's role in this project can ever have `permission`; for showing, not for deciding."""
        return self.visitor.may(self.project, permission)

    def show(self, status: int = 200, template: str = "", **context: Any) -> HttpResponse:
        """The page in its frame; only its live part when the script asks for that, 304 when nothing changed."""
        part = self.request.headers.get("X-Part")
        frame = frame_context(self.request, self.visitor, getattr(self, "project", None), self.section)
        everything = {"title": self.title, **frame, **context}
        if part and (live := self.parts.get(part, self.part)):
            return self._part(everything, live)
        return render(self.request, template or self.template, everything, status=status)

    def _part(self, context: dict[str, Any], template: str) -> HttpResponse:
        response = render(self.request, template, context)
        badge = next((entry.badge for entry in context["tabbar"] if entry.key == "runs"), "")
        tag = f'"{hashlib.sha256(response.content + badge.encode()).hexdigest()[:24]}"'
        if self.request.headers.get("If-None-Match") == tag:
            return HttpResponseNotModified(headers={"ETag": tag})
        response.headers["ETag"] = tag
        response.headers["X-Running"] = badge
        return response

    def to_sign_in(self, request: HttpRequest) -> HttpResponse:
        """To the sign-in page, and back here afterwards."""
        back = request.get_full_path() if request.method == "GET" or "GET" in self.permissions else ""
        query = f"?{urlencode({'next': back})}" if back else ""
        if request.headers.get("X-Part"):
            return HttpResponse(status=401)
        return HttpResponseRedirect(resolve_url(settings.LOGIN_URL) + query)

    def back(self, default: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """To the page the form was on, else to `default`."""
        fallback = reverse(default, args=args, kwargs=kwargs)
        return HttpResponseRedirect(safe_next(self.request, fallback))

    def say(self, sentence: str) -> None:
        """A confirmation on the next page."""
        messages.success(self.request, sentence)

    def warn(self, sentence: str) -> None:
        """Something that must not be overlooked, on the next page."""
        messages.error(self.request, sentence)

    def complain(self, error: DomainError) -> None:
        """A refusal on the next page: the sentence, and the code in small."""
        sentence = next(
            (str(s) for group in getattr(error, "fields", {}).values() for s in group), str(error.detail)
        )
        messages.error(
            self.request, _("%(sentence)s (%(code)s)") % {"sentence": sentence, "code": error.code}
        )


class Action(Page):
    """A change: POST only, then back to a page. Refusals that a person can mend are said there."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return self.act(**kwargs)
        except (NotFound, Forbidden):
            raise
        except DomainError as error:
            if isinstance(error, InvalidInput) or 400 <= error.status < 500 or error.status == 503:
                self.complain(error)
                return self.after(**kwargs)
            raise

    def act(self, *args: Any, **kwargs: Any) -> HttpResponse:
        """Does it and says so."""
        raise NotImplementedError

    def after(self, **kwargs: Any) -> HttpResponse:
        """Where to go when it was refused."""
        return self.back("panel:index")


def refuse_nul_in_form(request: HttpRequest) -> None:
    """For forms whose fields nobody types into; raises InvalidInput."""
    if any("\0" in text for _name, texts in request.POST.lists() for text in texts):
        raise InvalidInput


def _refuse_nul(request: HttpRequest, kwargs: Mapping[str, Any]) -> None:
    """Neither database takes U+0000 in a text; forms have rules of their own that name the field."""
    if any(isinstance(text, str) and "\0" in text for text in kwargs.values()):
        raise NotFound
    if "%00" in request.META.get("QUERY_STRING", ""):
        raise InvalidInput


def safe_next(request: HttpRequest, fallback: str) -> str:
    """The `next` of the request when it leads nowhere else, else `fallback`."""
    return safe_target(request, request.POST.get("next") or request.GET.get("next") or "", fallback)


def safe_target(request: HttpRequest, wanted: str, fallback: str) -> str:
    """`wanted` when it leads nowhere else, else `fallback`."""
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if safe and wanted.startswith("/") else fallback


def frame_context(
    request: HttpRequest, visitor: Visitor, project: Project | None, section: str
) -> dict[str, Any]:
    """What the frame around every page shows."""
    current = project or current_project(request, visitor)
    running = queries.running_now(current.pk) if current else 0
    company = queries.company(current.pk) if current else queries.Company(shared=False, applications=False)
    team = len(visitor.projects) > 1 or company.shared
    asked = None
    if current is not None and (team or company.applications):
        asked = _asked(visitor, current)
    waiting = None if asked is None else len(asked)
    return {
        "visitor": visitor,
        "project": current,
        "may": visitor.permissions(current) if current else frozenset(),
        "navigation": navigation.groups(visitor, current, running, waiting, team=team),
        "tabbar": navigation.tabbar(current, running, waiting),
        "asked": asked,
        "section": section,
        "theme": request.COOKIES.get("ql_theme", "auto"),
        "themes": navigation.THEMES,
        "zone": timezone.get_current_timezone_name(),
        "once": secrets.token_urlsafe(12),
    }


def deciding_in(visitor: Visitor) -> list[str]:
    """The projects in which the visitor decides, by role and by the project's policy; at most one query."""
    may = [project.pk for project in visitor.projects if visitor.may(project, DECIDE)]
    if not may:
        return []
    policies, me = approval_policy.of_many(may), visitor.principal.subject.id
    return [one for one in may if policies[one].lets_decide(me, visitor.roles.get(one))]


@dataclass(frozen=True)
class Asked:
    """When requests expire that wait for the visitor, the soonest first; `soon`: the first is to be reminded of."""

    expiries: list[datetime]
    soon: bool = False

    def __len__(self) -> int:
        return len(self.expiries)

    @property
    def first(self) -> datetime:
        return self.expiries[0]


def _asked(visitor: Visitor, project: Project) -> Asked:
    """What waits for a decision of the visitor, at most 100; one query where nothing does, else two at most."""
    if not visitor.may(project, DECIDE):
        return Asked([])
    found = approvals.waiting(project.pk, visitor.principal.subject, 100)
    if not found:
        return Asked([])
    policy = approval_policy.of(project.pk)
    if not policy.lets_decide(visitor.principal.subject.id, visitor.roles.get(project.pk)):
        return Asked([])
    return Asked(found, found[0] - clock.now() <= timedelta(minutes=policy.remind_before_minutes))


def current_project(request: HttpRequest, visitor: Visitor) -> Project | None:
    """The project that was looked at last, where it is still the visitor's; else their first one."""
    wanted = request.COOKIES.get(PROJECT)
    return next((one for one in visitor.projects if one.pk == wanted), visitor.first_project)
