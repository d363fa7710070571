"""The providers through which a person signs in: adding one's own identity there, and taking it away again."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.access.oidc import providers
from apps.access.services import revoke_method
from apps.identity.queries import bindings_of
from apps.panel.page import ORIGIN, SIGNED_IN, Action, Page


class SignInMethods(Page):
    permissions = {"GET": SIGNED_IN}
    template = "panel/sign_in_methods.html"
    section = "security"
    title = gettext_lazy("Ways to sign in")

    def get(self, request: HttpRequest) -> HttpResponse:
        bound = bindings_of(self.visitor.principal.subject.id)
        rows = [
            {"bound": one, "provider": providers.find_key(one.provider), "removable": len(bound) > 1}
            for one in bound
        ]
        return self.show(rows=rows, providers=providers.all_providers())


class RemoveProvider(Action):
    """Only identities of providers; passwords and passkeys have rules of their own."""

    permissions = {"POST": SIGNED_IN}
    fresh = True

    def act(self) -> HttpResponse:
        me = self.visitor.principal.subject
        asked = [self.request.POST.get(field, "")[:255] for field in ("provider", "subject")]
        mine = [one for one in bindings_of(me.id) if [one.provider, one.provider_subject] == asked]
        if mine and mine[0].provider.startswith("oidc:"):
            revoke_method(mine[0].provider, mine[0].provider_subject, me, actor=me, origin=ORIGIN)
            self.say(_("Taken away; sessions that came this way have ended."))
        return self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:sign-in-methods")
