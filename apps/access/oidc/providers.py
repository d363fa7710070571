"""The providers of this installation, and our own addresses that they know us by.

All of them begin with `QINGLONG_BASE_URL`: what a request says of its host is never told to a provider.
"""

from __future__ import annotations

from django.conf import settings
from django.urls import reverse

from apps.access.oidc.errors import NoProvider
from apps.core import canonical
from apps.core.errors import InvalidInput
from apps.identity.queries import check_provider
from qinglong.single_sign_on import FIRST, Provider

HASHED = "sha256:"


def all_providers() -> tuple[Provider, ...]:
    """In the order of the settings; none where single sign-on is not set up."""
    found: tuple[Provider, ...] = settings.SINGLE_SIGN_ON.providers
    return found


def find(alias: str) -> Provider:
    """Raises NoProvider."""
    for provider in all_providers():
        if provider.alias == alias:
            return provider
    raise NoProvider("alias_unknown")


def find_key(key: str) -> Provider | None:
    """The provider of a binding in the directory, while it is still set up."""
    return next((provider for provider in all_providers() if provider.key == key), None)


def provider_subject(provider: Provider, sub: str) -> str:
    """`sub` as the directory keeps it: itself where its rules allow, else a digest with the issuer (§6.4.1)."""
    try:
        check_provider(provider.key, sub)
    except InvalidInput:
        return HASHED + named(provider, sub)
    return HASHED + named(provider, sub) if sub.startswith(HASHED) else sub


def named(provider: Provider, text: str) -> str:
    """A digest of what an issuer calls something of its own; 64 characters."""
    return canonical.sha256(f"{provider.issuer}\0{text}")


def callback_url(provider: Provider) -> str:
    """The redirect URI to register. Each provider has its own: an answer of one is never taken for another's."""
    return public(_reverse("oidc-callback", provider))


def logout_url(provider: Provider) -> str:
    """Where the provider posts its logout tokens."""
    return public(_reverse("oidc-back-channel", provider))


def signed_out_url() -> str:
    """Where the provider may send people after they signed out there."""
    return public(reverse("login"))


def public(path: str) -> str:
    """A path of ours as people outside know it; `path` carries the sub-path already."""
    base: str = settings.BASE_URL
    return base.removesuffix(settings.PREFIX) + path


def _reverse(name: str, provider: Provider) -> str:
    return reverse(name) if provider.alias == FIRST else reverse(f"{name}-of", args=[provider.alias])
