"""Accounts of this installation; instance administrators only."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.password_validation import password_validators_help_texts
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters

from apps.access.models import User
from apps.access.services import create_account
from apps.core import pages
from apps.core.errors import DomainError
from apps.panel.page import ADMINISTRATOR, ORIGIN, Page
from apps.panel.queries import left_behind


@method_decorator(sensitive_post_parameters("password"), name="dispatch")
class People(Page):
    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    fresh = True
    template = "panel/people.html"
    section = "people"
    title = gettext_lazy("People")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.list_page()

    def post(self, request: HttpRequest) -> HttpResponse:
        name, password = (request.POST.get(field, "")[:4096] for field in ("username", "password"))
        administrator = request.POST.get("administrator") == "1"
        try:
            user = create_account(
                name,
                password,
                administrator=administrator,
                actor=self.visitor.principal.subject,
                origin=ORIGIN,
            )
        except DomainError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            errors = getattr(refusal, "fields", None) or {"username": [refusal.detail]}
            return self.list_page(refusal.status, name=name, administrator=administrator, errors=errors)
        self.say(_("Made: %(name)s. Give a role in a project next.") % {"name": user.username})
        return HttpResponseRedirect(reverse("panel:people"))

    def list_page(self, status: int = 200, **context: Any) -> HttpResponse:
        """The accounts by age, with the form beneath."""
        page = pages.paginate(
            User.objects.select_related("subject"),
            [pages.moment("created_at"), pages.identifier()],
            kind="panel.people",
            scope={},
            cursor=self.request.GET.get("cursor"),
        )
        return self.show(
            status,
            page=page,
            left=left_behind(self.visitor.projects),
            rules=password_validators_help_texts(),
            **context,
        )
