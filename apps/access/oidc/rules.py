"""`OIDC_REQUIRED`: whoever is not the break-glass account comes in through a provider, or not at all."""

from __future__ import annotations

from django.conf import settings

from apps.access.names import normal


def is_required() -> bool:
    """Whether passwords and passkeys of this panel count for one account only."""
    required: bool = settings.SINGLE_SIGN_ON.required
    return required


def may_come_in(username: str, provider: str) -> bool:
    """Whether an account may have a session that came by this provider of the directory."""
    if not is_required() or provider.startswith("oidc:"):
        return True
    return normal(username).casefold() == normal(settings.SINGLE_SIGN_ON.break_glass).casefold()
