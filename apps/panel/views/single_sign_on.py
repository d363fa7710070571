"""Signing in through a provider: the way there, the way back, and signing out from either side.

A form must not lead to another site (the policy's `form-action`, which browsers apply to redirects too), so what a
form begins goes on from a page of ours. What needs the OpenID libraries is loaded when it is first used.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters

from apps.access.errors import InvitationRefused, UsernameTaken
from apps.access.models import SignIn
from apps.access.oidc import flow as flows
from apps.access.oidc import metadata, providers
from apps.access.oidc.errors import Cancelled, ClocksDiffer, NoAccount, NotBegunHere, SingleSignOnFailed
from apps.access.services.sessions import session_of
from apps.core.errors import DomainError
from apps.panel import trouble
from apps.panel.page import SIGNED_IN, Action, safe_next, safe_target
from qinglong.single_sign_on import FIRST, Provider

log = logging.getLogger("qinglong.access")


class Begin(View):
    """To the provider. `fresh=1` asks for a new sign-in there."""

    http_method_names = ["get"]

    def get(self, request: HttpRequest, alias: str = FIRST) -> HttpResponse:
        target = safe_next(request, "")
        try:
            provider = providers.find(alias)
        except SingleSignOnFailed as failure:
            return failed(request, failure, target=target)
        if (elsewhere := _at_public_address(request)) is not None:
            return HttpResponseRedirect(elsewhere)
        try:
            known = metadata.metadata(provider)
        except SingleSignOnFailed as failure:
            return failed(request, failure, provider=provider, target=target)
        flow = flows.begin(provider, target, fresh=request.GET.get("fresh") == "1")
        response = HttpResponseRedirect(flows.authorization_url(provider, known, flow))
        flows.keep(request, response, flow)
        add_never_cache_headers(response)
        return response


class Link(Action):
    """Adds an identity to the account of whoever is signed in, freshly."""

    permissions = {"POST": SIGNED_IN}
    fresh = True

    def act(self, alias: str) -> HttpResponse:
        row = session_of(self.request)
        target = safe_next(self.request, reverse("panel:index"))
        try:
            provider = providers.find(alias)
            known = metadata.metadata(provider)
        except SingleSignOnFailed as failure:
            return failed(self.request, failure, target=target)
        flow = flows.begin(provider, target, link="" if row is None else str(row.pk))
        response = leaving(self.request, provider, flows.authorization_url(provider, known, flow))
        flows.keep(self.request, response, flow)
        return response


class Callback(View):
    """From the provider, with a code. Whatever happens, a page says so."""

    http_method_names = ["get"]

    def get(self, request: HttpRequest, alias: str = FIRST) -> HttpResponse:
        # No page that comes of it repeats code and state, or leads back here; what was sent stays in `GET`.
        request.GET = request.GET
        request.path, request.META["QUERY_STRING"] = reverse("login"), ""
        try:
            provider = providers.find(alias)
            flow = flows.take(request, alias)
        except NotBegunHere as failure:
            # Some providers leave the state out when they say no.
            said_no = "error" in request.GET and "state" not in request.GET
            return failed(request, Cancelled("without_state") if said_no else failure, provider=provider)
        except SingleSignOnFailed as failure:
            return failed(request, failure)
        try:
            response = self._finish(request, provider, flow)
        except DomainError as error:
            response = trouble.page(request, error)
        flows.drop(response, flows.cookie_name(flow.state))
        add_never_cache_headers(response)
        return response

    def _finish(self, request: HttpRequest, provider: Provider, flow: flows.Flow) -> HttpResponse:
        from apps.access.oidc.backend import identify
        from apps.access.services import single_sign_on
        from apps.panel.views.coming_in import came_back

        identity = None
        try:
            single_sign_on.begun(flow)
            _check_answer(request, provider)
            identity = identify(request, provider, flow)
            done = single_sign_on.complete(request, flow, identity)
        except SingleSignOnFailed as failure:
            log.warning(
                "sign-in through %s refused: %s (reference %s)",
                provider.alias,
                failure.reason,
                failure.reference,
            )
            with suppress(DomainError):
                single_sign_on.note_refusal(provider, failure, identity)
            return failed(request, failure, provider=provider, target=flow.next)
        except (InvitationRefused, UsernameTaken) as refusal:
            return came_back(request, refusal)
        with suppress(DomainError):
            single_sign_on.note_success(identity, done)
        # The cookie is signed, and the host may be another by now.
        return HttpResponseRedirect(safe_target(request, flow.next, reverse("panel:index")))


@method_decorator([csrf_exempt, sensitive_post_parameters("logout_token")], name="dispatch")
class BackChannelLogout(View):
    """From the provider itself: sessions that end there end here (OpenID Connect Back-Channel Logout 1.0)."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest, alias: str = FIRST) -> HttpResponse:
        from apps.access.services import single_sign_on

        try:
            provider = providers.find(alias)
            ended = single_sign_on.sign_out_by_token(provider, request.POST.get("logout_token", ""))
        except SingleSignOnFailed as failure:
            # Anybody can send one: no more than a line, and only on request.
            log.debug("logout token refused: %s", failure.reason)
            response: HttpResponse = JsonResponse({"error": "invalid_request"}, status=400)
        except DomainError as error:
            response = JsonResponse({"error": error.code}, status=error.status)
        else:
            log.info("sign-out at %s ended %d sessions", provider.alias, ended)
            response = HttpResponse(status=200)
        response.headers["Cache-Control"] = "no-store"
        return response


def after_sign_out(request: HttpRequest, row: SignIn | None) -> HttpResponse | None:
    """The page that goes on to sign out at the provider a session came from; None where there is no such thing."""
    provider = None if row is None else providers.find_key(row.provider)
    if provider is None:
        return None
    try:
        address = metadata.metadata(provider).end_session_endpoint
    except SingleSignOnFailed:
        return None
    if address is None:
        return None
    # Without a token as a hint: none is kept. Some providers therefore ask whether to sign out.
    asked = {"client_id": provider.client_id, "post_logout_redirect_uri": providers.signed_out_url()}
    return leaving(
        request, provider, f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}", out=True
    )


def again_url(row: SignIn | None, back: str) -> str | None:
    """Where a person of a provider signs in once more without signing out; None for sessions of other ways."""
    provider = None if row is None else providers.find_key(row.provider)
    return None if provider is None else begin_url(provider, back, fresh="1")


def begin_url(provider: Provider, back: str = "", **extra: str) -> str:
    """The address of `Begin` for one provider."""
    path = (
        reverse("oidc-begin") if provider.alias == FIRST else reverse("oidc-begin-of", args=[provider.alias])
    )
    query = urlencode({**({"next": back} if back else {}), **extra})
    return f"{path}?{query}" if query else path


def buttons(back: str) -> list[dict[str, str]]:
    """One for each provider, for the sign-in page."""
    return [{"name": one.name, "url": begin_url(one, back)} for one in providers.all_providers()]


def leaving(request: HttpRequest, provider: Provider, url: str, *, out: bool = False) -> HttpResponse:
    """A page that goes on to the provider by itself, and has a link for browsers that do not."""
    context = {"title": provider.name, "provider": provider.name, "url": url, "out": out}
    response = render(request, "access/leaving.html", context)
    response.headers["Refresh"] = f"0;url={url}"
    add_never_cache_headers(response)
    return response


def failed(
    request: HttpRequest, failure: SingleSignOnFailed, *, provider: Provider | None = None, target: str = ""
) -> HttpResponse:
    """The page of a failure: what to do, a code, and a reference that the login doctor knows too."""
    context: dict[str, Any] = {
        "title": _("Not signed in"),
        "failure": failure,
        "skew": _skew(failure),
        "again": "" if provider is None else begin_url(provider, target, **_otherwise(failure)),
        "next": target,
    }
    response = render(request, "access/single_sign_on_failed.html", context, status=failure.status)
    # Django would write a line for each 503, and anybody could fill a disk while a provider is down.
    response._has_been_logged = True  # type: ignore[attr-defined]
    add_never_cache_headers(response)
    return response


def _otherwise(failure: SingleSignOnFailed) -> dict[str, str]:
    """Whoever has no account here may have another one there: the provider asks once more who it is."""
    return {"fresh": "1"} if isinstance(failure, NoAccount) else {}


def _skew(failure: SingleSignOnFailed) -> str:
    if not isinstance(failure, ClocksDiffer):
        return ""
    seconds = abs(round(failure.skew_ms / 1000))
    if failure.skew_ms > 0:
        return ngettext(
            "The provider's clock is %(n)d second ahead of the panel's.",
            "The provider's clock is %(n)d seconds ahead of the panel's.",
            seconds,
        ) % {"n": seconds}
    return ngettext(
        "The provider's clock is %(n)d second behind the panel's.",
        "The provider's clock is %(n)d seconds behind the panel's.",
        seconds,
    ) % {"n": seconds}


def _check_answer(request: HttpRequest, provider: Provider) -> None:
    """The parts of the answer that are no code: an error, and who says it (RFC 9207)."""
    told = request.GET.get("iss")
    if told is None and "error" not in request.GET and metadata.metadata(provider).names_issuer:
        raise SingleSignOnFailed("iss_missing")
    if told is not None and told != provider.issuer:
        raise SingleSignOnFailed("iss_wrong")
    if error := request.GET.get("error"):
        raise Cancelled(
            f"provider_says_{error}" if error.isidentifier() and len(error) <= 40 else "provider_says"
        )


def _at_public_address(request: HttpRequest) -> str | None:
    """The same page at the public address, when another one was asked: cookies are a host's.

    Once only: a proxy may hand over another host than people see.
    """
    public = urlsplit(settings.BASE_URL).netloc
    if request.get_host() == public or "here" in request.GET:
        return None
    query = request.GET.copy()
    query["here"] = "1"
    return f"{providers.public(request.path)}?{query.urlencode()}"
