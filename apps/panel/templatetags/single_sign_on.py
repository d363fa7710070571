"""The ways in that go through a provider, for the sign-in page."""

from __future__ import annotations

from typing import Any

from django import template

from apps.access.oidc import rules
from apps.access.services.sessions import session_of
from apps.panel.views import single_sign_on

register = template.Library()


@register.inclusion_tag("access/_providers.html")
def provider_buttons(back: str) -> dict[str, Any]:
    """A button for each provider; nothing where there is none."""
    return {"buttons": single_sign_on.buttons(back), "required": rules.is_required()}


@register.simple_tag
def provider_required() -> bool:
    """Whether the password is for one account only."""
    return rules.is_required()


@register.inclusion_tag("panel/_sign_in_again.html", takes_context=True)
def sign_in_again(context: dict[str, Any]) -> dict[str, Any]:
    """What leads to a fresh session and back to this page; through the provider for those who came from there."""
    request = context["request"]
    return {"url": single_sign_on.again_url(session_of(request), request.get_full_path())}
