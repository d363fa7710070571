"""Pages for people who are not signed in, and the two switches that anybody has."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.password_validation import password_validators_help_texts
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View
from django.views.decorators.debug import sensitive_post_parameters

from apps.access import doorkeeper, services
from apps.access.addresses import network_of
from apps.access.errors import DoorBusy, PasskeyRefused, SignInRefused, TooManyAttempts
from apps.access.factors import factors_of, passkeys
from apps.access.models import User
from apps.access.services import entry
from apps.core import clock
from apps.core.errors import DomainError, InvalidInput
from apps.core.throttle import Throttle
from apps.panel.page import safe_next
from apps.panel.views import single_sign_on
from apps.projects import queries as projects
from apps.projects.errors import BootstrapNotPristine

_SETUP_TOKEN = re.compile(r"([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{1,128})")
_MAX_FIELD = 4096
_asked = Throttle(20)


class DoorView(View):
    """A page outside the frame; never kept by a cache."""

    template = ""

    def show(self, status: int = 200, **context: Any) -> HttpResponse:
        """The page."""
        response = render(self.request, self.template, context, status=status)
        add_never_cache_headers(response)
        return response

    def refused(self, refusal: DomainError, **context: Any) -> HttpResponse:
        """The page with why not, and after how many seconds to try again."""
        wait = refusal.extra.get("retry_after")
        response = self.show(refusal.status, refusal=refusal, wait=wait, **context)
        if wait:
            response.headers["Retry-After"] = str(wait)
        return response


@method_decorator(sensitive_post_parameters("password"), name="dispatch")
class SignIn(DoorView):
    """Name and password; the answer is the same whatever of the two was wrong."""

    template = "access/sign_in.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        target = safe_next(request, reverse("panel:index"))
        if isinstance(request.user, User):
            return HttpResponseRedirect(target)
        return self.show(
            title=_("Sign in"),
            next=target,
            name="",
            needs_setup=projects.is_claimable(),
            passkeys=passkeys.are_in_use(request),
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        target = safe_next(request, reverse("panel:index"))
        name, password = (request.POST.get(field, "")[:_MAX_FIELD] for field in ("username", "password"))
        try:
            if request.POST.get("answer"):
                entry.finish_with_passkey(request, request.POST["answer"], alone=True)
            elif entry.enter(request, name, password) is None:
                return HttpResponseRedirect(f"{reverse('login-second')}?{urlencode({'next': target})}")
        except DoorBusy as refusal:
            return doorkeeper.answer(request, refusal)
        except (SignInRefused, TooManyAttempts, PasskeyRefused) as refusal:
            return self.refused(
                refusal, title=_("Sign in"), next=target, name=name, passkeys=passkeys.are_in_use(request)
            )
        return HttpResponseRedirect(target)


@method_decorator(sensitive_post_parameters("code", "answer"), name="dispatch")
class SecondStep(DoorView):
    """The second factor of somebody whose password was right in this browser: a code or a passkey."""

    template = "access/second_step.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        user = entry.half_way(request)
        if user is None:
            return HttpResponseRedirect(reverse("login"))
        return self.show(**self._page(request, user))

    def post(self, request: HttpRequest) -> HttpResponse:
        user = entry.half_way(request)
        if user is None:
            return HttpResponseRedirect(reverse("login"))
        try:
            if request.POST.get("answer"):
                entry.finish_with_passkey(request, request.POST["answer"])
            else:
                entry.finish_with_code(request, request.POST.get("code", "")[:_MAX_FIELD])
        except (SignInRefused, TooManyAttempts, PasskeyRefused) as refusal:
            return self.refused(refusal, **self._page(request, user))
        return HttpResponseRedirect(safe_next(request, reverse("panel:index")))

    def _page(self, request: HttpRequest, user: User) -> dict[str, Any]:
        return {
            "title": _("Second step"),
            "next": safe_next(request, reverse("panel:index")),
            "name": user.username,
            "factors": factors_of(user),
        }


class AskPasskey(View):
    """What the browser needs to use a passkey at the door or to confirm inside; JSON, for our own script."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponse:
        alone = request.POST.get("alone") == "1"
        if services.session_of(request) is None:
            # Strangers may ask too, and each question leaves a row behind for ten minutes.
            client = network_of(request)
            wait = _asked.full(client)
            if wait or not passkeys.are_in_use(request):
                return HttpResponse(status=429 if wait else 404, headers={"Retry-After": str(wait or 60)})
            _asked.count(client)
        response = JsonResponse(entry.ask_passkey(request, alone=alone))
        add_never_cache_headers(response)
        return response


class SignOut(View):
    """Ends the session; POST only. With `next`, signing in again leads back there."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponse:
        row = services.session_of(request)
        services.sign_out(request)
        target = safe_next(request, "")
        # Who comes back to sign in again does not want to be signed out everywhere.
        onwards = None if target else single_sign_on.after_sign_out(request, row)
        if onwards is not None:
            return onwards
        return HttpResponseRedirect(reverse("login") + (f"?{urlencode({'next': target})}" if target else ""))


@method_decorator(sensitive_post_parameters("password"), name="dispatch")
class SetUp(DoorView):
    """The first account, through the one-time link; afterwards the way in is closed for good."""

    template = "access/set_up.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        if not projects.is_claimable():
            return self._closed(BootstrapNotPristine())
        found = _SETUP_TOKEN.fullmatch(request.GET.get("token", ""))
        if found is None or not _is_live(found[1]):
            return self._closed(None)
        return self._form(name="")

    def post(self, request: HttpRequest) -> HttpResponse:
        found = _SETUP_TOKEN.fullmatch(request.POST.get("token", "")[:_MAX_FIELD])
        name, password = (request.POST.get(field, "")[:_MAX_FIELD] for field in ("username", "password"))
        if found is None:
            return self._closed(None)
        try:
            services.setup_first_account(found[1], found[2], name, password)
        except InvalidInput as refusal:
            return self._form(name=name, status=400, errors=refusal.fields or {"username": [refusal.detail]})
        except DomainError as refusal:
            return self._closed(refusal)
        try:
            entry.enter(request, name, password)
        except (TooManyAttempts, SignInRefused):
            # Somebody guessed at this name before it existed, or it needs a provider; the account is there.
            return HttpResponseRedirect(reverse("login"))
        return HttpResponseRedirect(reverse("panel:index"))

    def _form(self, *, name: str, status: int = 200, errors: Any = None) -> HttpResponse:
        token = self.request.POST.get("token") or self.request.GET.get("token", "")
        return self.show(
            status,
            title=_("Set up QingLong"),
            token=token,
            name=name,
            rules=password_validators_help_texts(),
            errors=errors or {},
        )

    def _closed(self, refusal: DomainError | None) -> HttpResponse:
        done = isinstance(refusal, BootstrapNotPristine)
        status = refusal.status if refusal else 403
        code = refusal.code if refusal else "setup_link_invalid"
        return self.show(status, title=_("Set up QingLong"), closed=True, done=done, code=code)


def _is_live(challenge_id: str) -> bool:
    """Whether the link is the newest and still good; its secret half is checked when it is used."""
    latest = projects.latest_challenge()
    return (
        latest is not None
        and latest.challenge_id == challenge_id
        and latest.consumed_at is None
        and latest.expires_at > clock.now()
    )


class Theme(View):
    """Light, dark or like the system; kept in a cookie of this browser."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponse:
        chosen = request.POST.get("theme", "")
        response = HttpResponseRedirect(safe_next(request, reverse("panel:index")))
        if chosen in ("auto", "light", "dark"):
            response.set_cookie(
                "ql_theme",
                chosen,
                max_age=365 * 86_400,
                path=settings.SESSION_COOKIE_PATH,
                samesite="Lax",
                secure=settings.SECURE,
                httponly=True,
            )
        return response
