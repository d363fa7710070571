"""What of a token's claims may be shown to those who look after the panel: enough to find a fault, nobody's data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.access.oidc.backend import claim
from qinglong.single_sign_on import Provider

MOST = 40
MOST_GROUPS = 100
MAX_TEXT = 200
# What says how the sign-in was made, and nothing about the person.
_OPEN = frozenset({"iss", "aud", "azp", "exp", "iat", "nbf", "auth_time", "acr", "amr", "email_verified"})
_HIDDEN = frozenset({"nonce", "at_hash", "c_hash", "s_hash", "sid", "jti", "session_state"})


def masked(provider: Provider, claims: Mapping[str, Any]) -> dict[str, Any]:
    """At most 40 claims by name; groups in clear, since they decide, other text as its first two letters."""
    shown: dict[str, Any] = {}
    for name in sorted(claims, key=str)[:MOST]:
        shown[_plain(name)] = _clear(claims[name]) if name in _OPEN else _mask(name, claims[name])
    groups = claim(claims, provider.groups_claim)
    if isinstance(groups, list | str):
        shown[provider.groups_claim] = _clear(groups)
    return shown


def _clear(value: Any) -> Any:
    if isinstance(value, list):
        return [_clear(one) for one in value[:MOST_GROUPS] if not isinstance(one, list | dict)]
    if isinstance(value, bool | int | float) or value is None:
        return value
    return _plain(value) if isinstance(value, str) else ""


def _plain(text: str) -> str:
    """What a page, a terminal and both databases can hold."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:MAX_TEXT]
    )


def _mask(name: str, value: Any) -> str:
    if name in _HIDDEN:
        return "…"
    if isinstance(value, str):
        return f"{_clear(value[:2])}… ({len(value)})" if len(value) > 4 else "…"
    if isinstance(value, list | dict):
        return f"… ({len(value)})"
    return "…"
