"""A person's own security: password, second factors, ways to sign in, live sessions."""

from __future__ import annotations

import io
from typing import Any
from uuid import UUID

import segno
from django.contrib.auth.password_validation import password_validators_help_texts
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters

from apps.access import queries
from apps.access.addresses import host_of
from apps.access.errors import PasskeyRefused, SignInRefused, TooManyAttempts
from apps.access.factors import codes, factors_of, passkeys
from apps.access.oidc import providers
from apps.access.services import (
    change_password,
    end_session,
    end_sessions,
    session_of,
)
from apps.core.errors import InvalidInput
from apps.panel.page import ORIGIN, SIGNED_IN, Action, Page

_MAX_FIELD = 4096


class Security(Page):
    """Everything on one page; what its forms do has addresses of its own and comes back here."""

    permissions = {"GET": SIGNED_IN}
    template = "panel/security.html"
    section = "security"
    title = gettext_lazy("Sign-in and security")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.page()

    def page(self, status: int = 200, **context: Any) -> HttpResponse:
        """The page, with what a form was refused for."""
        account = self.visitor.account
        here = session_of(self.request)
        return self.show(
            status,
            template=Security.template,
            factors=factors_of(account),
            passkeys=passkeys.passkeys_of(account),
            passkeys_possible=passkeys.are_possible(self.request),
            sessions=queries.sessions_of(account.subject_id),
            here=here.pk if here else None,
            providers=providers.all_providers(),
            has_password=account.has_usable_password(),
            rules=password_validators_help_texts(),
            **context,
        )


@method_decorator(sensitive_post_parameters("current", "password"), name="dispatch")
class ChangePassword(Security):
    """Ends the other sessions, so that whoever knew the old password is out."""

    permissions = {"POST": SIGNED_IN}

    def post(self, request: HttpRequest) -> HttpResponse:
        account = self.visitor.account
        if not account.has_usable_password():
            raise InvalidInput
        current, new = (request.POST.get(name, "")[:_MAX_FIELD] for name in ("current", "password"))
        try:
            change_password(request, account, current, new)
        except SignInRefused as refusal:
            wrong = {"current": [_("This is not your password.")]}
            return self.page(refusal.status, errors=wrong, code=refusal.code)
        except TooManyAttempts as refusal:
            response = self.page(refusal.status, errors={"current": [refusal.detail]}, code=refusal.code)
            response.headers["Retry-After"] = str(refusal.extra["retry_after"])
            return response
        except InvalidInput as refusal:
            return self.page(refusal.status, errors=refusal.fields, code=refusal.code)
        self.say(_("Changed. Your other sessions have ended."))
        return HttpResponseRedirect(reverse("panel:security"))


class BeginCodeApp(Action):
    """Makes a key and leads to the page that shows it."""

    permissions = {"POST": SIGNED_IN}
    fresh = True

    def act(self) -> HttpResponse:
        codes.begin_code_app(self.visitor.account, host_of(self.request))
        return HttpResponseRedirect(reverse("panel:security-app"))

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:security"))


@method_decorator(sensitive_post_parameters("code"), name="dispatch")
class CodeApp(Page):
    """Shows the new key as a picture and as text until the first right code."""

    permissions = {"GET": SIGNED_IN, "POST": SIGNED_IN}
    fresh = True
    template = "panel/security_app.html"
    section = "security"
    title = gettext_lazy("App for codes")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._form()

    def post(self, request: HttpRequest) -> HttpResponse:
        text = "".join(request.POST.get("code", "")[:64].split())
        try:
            recovery = codes.confirm_code_app(self.visitor.account, text)
        except (SignInRefused, TooManyAttempts) as refusal:
            return self._form(refusal.status, refusal=refusal, wait=refusal.extra.get("retry_after"))
        self.say(_("From now on signing in asks for a code."))
        return recovery_page(self, recovery)

    def _form(self, status: int = 200, **context: Any) -> HttpResponse:
        pending = codes.pending_code_app(self.visitor.account, host_of(self.request))
        if pending is None:
            return HttpResponseRedirect(reverse("panel:security"))
        spaced = " ".join(pending.secret[at : at + 4] for at in range(0, len(pending.secret), 4))
        return self.show(status, picture=_picture(pending.uri), secret=spaced, uri=pending.uri, **context)


class RemoveCodeApp(Action):
    permissions = {"POST": SIGNED_IN}
    fresh = True

    def act(self) -> HttpResponse:
        codes.remove_code_app(self.visitor.account)
        self.say(_("Removed: no code is asked for any more."))
        return self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:security"))


class RenewRecoveryCodes(Action):
    permissions = {"POST": SIGNED_IN}
    fresh = True
    section = "security"

    def act(self) -> HttpResponse:
        return recovery_page(self, codes.renew_recovery_codes(self.visitor.account))

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:security"))


class AskNewPasskey(Page):
    """What the browser needs to make a passkey; JSON, for our own script."""

    permissions = {"POST": SIGNED_IN}

    def post(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse(passkeys.begin_adding(request, self.visitor.account))


class AddPasskey(Action):
    permissions = {"POST": SIGNED_IN}
    fresh = True
    section = "security"

    def act(self) -> HttpResponse:
        post = self.request.POST
        try:
            recovery = passkeys.add(
                self.request, self.visitor.account, post.get("name", ""), post.get("answer", "")
            )
        except PasskeyRefused as refusal:
            self.complain(refusal)
            return self.after()
        self.say(_("Added: %(name)s.") % {"name": post.get("name", "").strip()})
        return recovery_page(self, recovery) if recovery else self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:security"))


class RemovePasskey(Action):
    permissions = {"POST": SIGNED_IN}
    fresh = True

    def act(self, passkey: int) -> HttpResponse:
        passkeys.remove(self.visitor.account, passkey)
        self.say(_("Removed; sessions that came by it have ended."))
        return self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:security"))


class EndSession(Action):
    permissions = {"POST": SIGNED_IN}

    def act(self, session: UUID) -> HttpResponse:
        subject = self.visitor.principal.subject
        end_session(subject.id, session, actor=subject, origin=ORIGIN)
        self.say(_("Ended."))
        return self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:security"))


class EndOtherSessions(Action):
    permissions = {"POST": SIGNED_IN}

    def act(self) -> HttpResponse:
        subject, here = self.visitor.principal.subject, session_of(self.request)
        end_sessions(subject.id, actor=subject, origin=ORIGIN, keep=here.pk if here else None)
        self.say(_("All your other sessions have ended."))
        return self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:security"))


def recovery_page(page: Page, recovery: list[str]) -> HttpResponse:
    """New recovery codes, shown once; or back, where there are none to show."""
    if not recovery:
        return HttpResponseRedirect(reverse("panel:security"))
    return page.show(201, template="panel/security_codes.html", title=_("Recovery codes"), codes=recovery)


def _picture(uri: str) -> SafeString:
    """The key as an SVG by attributes; nothing but squares drawn from our own text is in it."""
    drawn = io.BytesIO()
    segno.make(uri, error="m").save(
        drawn, kind="svg", xmldecl=False, svgclass=None, lineclass=None, scale=5, border=3, light="#fff"
    )
    return mark_safe(drawn.getvalue().decode())  # noqa: S308
