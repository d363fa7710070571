"""The page that an invitation's link opens: name and password, or a provider; and a way in with what was promised.

The link's secret stands behind the `#` of its address. A script moves it into a form, so it is in no address that
is sent, and in no log.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.password_validation import password_validators_help_texts
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.debug import sensitive_post_parameters

from apps.access import services
from apps.access.addresses import network_of
from apps.access.errors import (
    InvitationInvalid,
    InvitationRefused,
    SignInRefused,
    TooManyAttempts,
    UsernameTaken,
)
from apps.access.models import Invitation, User
from apps.access.oidc import flow as flows
from apps.access.oidc import metadata, providers, rules
from apps.access.oidc.errors import SingleSignOnFailed
from apps.access.services import entry
from apps.core.errors import InvalidInput
from apps.core.throttle import Throttle
from apps.panel.views.door import DoorView
from apps.panel.views.single_sign_on import failed, leaving

_MAX_FIELD = 4096
# Wrong links of one client, and tries with one good link (which say whether a name is taken).
_wrong = Throttle(20)
_tried = Throttle(20)


class InvitationView(DoorView):
    """What both pages do first: who asks may ask, and the link is good."""

    template = "access/invitation.html"

    def opened(self) -> Invitation:
        """The invitation of the form's link; raises InvitationInvalid and TooManyAttempts."""
        client = network_of(self.request)
        if wait := _wrong.full(client):
            raise TooManyAttempts(retry_after=wait)
        try:
            found = services.find_open(self.secret)
        except InvitationInvalid:
            _wrong.count(client)
            raise
        if wait := _tried.full(str(found.pk)):
            raise TooManyAttempts(retry_after=wait)
        _tried.count(str(found.pk))
        return found

    @property
    def secret(self) -> str:
        """What was typed or pasted: the secret, or the whole link."""
        return self.request.POST.get("secret", "")[:_MAX_FIELD].strip().rpartition("#")[2]

    def closed(self, refusal: InvitationRefused | TooManyAttempts) -> HttpResponse:
        """Why the link does not work."""
        return self.refused(refusal, title=_("Invitation"))

    def form(self, row: Invitation, status: int = 200, **context: Any) -> HttpResponse:
        """What is promised, and how to come in."""
        return self.show(
            status,
            title=_("Come in"),
            row=row,
            secret=self.secret,
            providers=providers.all_providers(),
            passwords=not rules.is_required(),
            rules=password_validators_help_texts(),
            **context,
        )


@method_decorator(sensitive_post_parameters("secret", "password"), name="dispatch")
class ComeIn(InvitationView):
    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show(title=_("Invitation"), signed_in=_signed_in(request))

    def post(self, request: HttpRequest) -> HttpResponse:
        if _signed_in(request):
            return self.show(409, title=_("Invitation"), signed_in=_signed_in(request))
        try:
            row = self.opened()
        except (InvitationInvalid, TooManyAttempts) as refusal:
            return self.closed(refusal)
        if "username" not in request.POST:
            return self.form(row, name=row.username)
        name, password = (request.POST.get(field, "")[:_MAX_FIELD] for field in ("username", "password"))
        try:
            services.accept_with_password(self.secret, name, password)
        except InvalidInput as refusal:
            errors = refusal.fields or {"username": [refusal.detail]}
            return self.form(row, 400, name=name, errors=errors)
        except UsernameTaken as refusal:
            return self.form(row, refusal.status, name=name, errors={"username": [refusal.detail]})
        except (InvitationRefused, TooManyAttempts) as refusal:
            return self.closed(refusal)
        try:
            entry.enter(request, name, password)
        except (TooManyAttempts, SignInRefused):
            # Somebody guessed at this name before it existed; the account is there.
            return HttpResponseRedirect(reverse("login"))
        return HttpResponseRedirect(reverse("panel:index"))


@method_decorator(sensitive_post_parameters("secret"), name="dispatch")
class ComeInThroughProvider(InvitationView):
    """To the provider; whoever comes back from there has the account."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest, alias: str) -> HttpResponse:
        if _signed_in(request):
            return self.show(409, title=_("Invitation"), signed_in=_signed_in(request))
        try:
            row = self.opened()
            provider = providers.find(alias)
            known = metadata.metadata(provider)
        except (InvitationInvalid, TooManyAttempts) as refusal:
            return self.closed(refusal)
        except SingleSignOnFailed as failure:
            return failed(request, failure)
        flow = flows.begin(provider, reverse("panel:index"), invitation=str(row.pk))
        response = leaving(request, provider, flows.authorization_url(provider, known, flow))
        flows.keep(request, response, flow)
        return response


def came_back(request: HttpRequest, refusal: InvitationRefused | UsernameTaken) -> HttpResponse:
    """The page of a refusal after the provider had said who it is."""
    view = InvitationView()
    view.setup(request)
    return view.refused(refusal, title=_("Invitation"))


def _signed_in(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None
