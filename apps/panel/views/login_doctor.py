"""The login doctor; instance administrators only."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from apps.access.models import ProviderSignIn
from apps.access.oidc import doctor, providers
from apps.panel.page import ADMINISTRATOR, Page
from apps.panel.views.single_sign_on import begin_url
from qinglong.single_sign_on import Provider

OUTCOMES = {
    ProviderSignIn.Outcome.SIGNED_IN: _("signed in"),
    ProviderSignIn.Outcome.LINKED: _("added to an account"),
    ProviderSignIn.Outcome.REFUSED: _("refused"),
}


class LoginDoctor(Page):
    """What to register at each provider and who came lately; POST asks one provider now."""

    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    template = "panel/login_doctor.html"
    section = "login-doctor"
    title = _("Sign-in doctor")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show(patients=[self.patient(provider) for provider in providers.all_providers()])

    def post(self, request: HttpRequest) -> HttpResponse:
        asked = request.POST.get("provider")
        return self.show(
            patients=[
                self.patient(provider, examined=provider.alias == asked)
                for provider in providers.all_providers()
            ]
        )

    def patient(self, provider: Provider, *, examined: bool = False) -> dict[str, Any]:
        """What the page shows of one provider; nothing secret is in there."""
        rows = doctor.recent(provider)
        return {
            "alias": provider.alias,
            "name": provider.name,
            "issuer": provider.issuer,
            "client_id": provider.client_id,
            "addresses": doctor.addresses(provider),
            "groups": {group: dict(roles) for group, roles in provider.role_map.items()},
            "groups_claim": provider.groups_claim,
            "findings": doctor.examine(provider) if examined else None,
            "rows": [{"row": row, "outcome": OUTCOMES[ProviderSignIn.Outcome(row.outcome)]} for row in rows],
            "attempt": begin_url(provider, reverse("panel:login-doctor"), fresh="1"),
        }
