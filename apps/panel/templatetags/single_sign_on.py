"""The ways in that go through a provider, for the sign-in page."""

from __future__ import annotations

from typing import Any

from django import template

from apps.access.oidc import rules
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
