"""Is it still you? What changes who may come in or what they may do asks for a sign-in of the last minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.access.authentication import principal_of
from apps.access.errors import PasskeyRefused, SessionNotFresh, SignInRefused, TooManyAttempts
from apps.access.factors import factors_of
from apps.access.services import entry, is_fresh, session_of
from apps.core.errors import DomainError

if TYPE_CHECKING:
    from apps.panel.page import Page

_MAX_FIELD = 4096
# What belongs to this question, and what a page must not repeat.
_OWN = frozenset({
    "csrfmiddlewaretoken", "confirm", "confirm_password", "confirm_code", "answer", "password", "current",
})  # fmt: skip


def ask(page: Page) -> HttpResponse | None:
    """None when the session is fresh, or just became so; else the question, which sends the form on afterwards."""
    from apps.panel.page import safe_next  # these two stand on this module
    from apps.panel.views.single_sign_on import again_url

    if is_fresh(page.request, page.fresh_minutes):
        return None
    refusal: DomainError = SessionNotFresh()
    if page.request.POST.get("confirm"):
        try:
            _confirm(page)
            return None
        except (SignInRefused, TooManyAttempts, PasskeyRefused) as refused:
            refusal = refused
    row = session_of(page.request)
    back = page.request.path if "GET" in page.permissions else reverse("panel:index")
    wait = refusal.extra.get("retry_after")
    response = page.show(
        refusal.status,
        template="panel/confirm.html",
        title=_("Is it still you?"),
        refusal=refusal,
        because=page.fresh_because,
        wait=wait,
        asked_before=not isinstance(refusal, SessionNotFresh),
        has_password=page.visitor.account.has_usable_password(),
        by_provider=row is not None and row.provider.startswith("oidc:"),
        again=again_url(row, safe_next(page.request, back)),
        factors=factors_of(page.visitor.account),
        kept=[
            (name, text) for name, texts in page.request.POST.lists() if name not in _OWN for text in texts
        ],
    )
    if wait:
        response.headers["Retry-After"] = str(wait)
    return response


def _confirm(page: Page) -> None:
    post = page.request.POST
    if post.get("answer"):
        entry.confirm_with_passkey(page.request, post["answer"])
    elif post.get("confirm_code"):
        entry.confirm_with_code(page.request, post["confirm_code"][:_MAX_FIELD])
    else:
        entry.confirm_with_password(page.request, post.get("confirm_password", "")[:_MAX_FIELD])
    row = session_of(page.request)
    if row is not None:
        page.visitor = replace(page.visitor, principal=principal_of(row, page.request))
