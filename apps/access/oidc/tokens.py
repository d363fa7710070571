"""What is believed of a token: signature first, then every claim (§6.4.4; OpenID Core 3.1.3.7, Back-Channel 2.6).

Times are compared with the panel's clock, which tests move; a refusal names the claim, never its value.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from apps.access.oidc import metadata
from apps.access.oidc.errors import ClocksDiffer, SingleSignOnFailed
from apps.core import canonical, clock, ids
from qinglong.single_sign_on import Provider

LEEWAY_S = 60
MAX_TOKEN = 65_536
MAX_SUB = 255
# Seconds; what comes later is no time that a database can hold.
END_OF_TIME = 2**37
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"

Claims = Mapping[str, Any]


def verify_id_token(provider: Provider, token: object, nonce: str) -> Claims:
    """The claims of an ID token that answers `nonce`.

    Raises ProviderUnreachable, SingleSignOnFailed (`token_…`, `key_unknown`, `…_wrong`), ClocksDiffer.
    """
    claims = _signed(provider, token)
    _check_parties(provider, claims)
    if not _same(claims.get("nonce"), nonce):
        raise SingleSignOnFailed("nonce_wrong")
    _check_times(claims)
    _text(claims, "sub")
    return claims


def verify_logout_token(provider: Provider, token: object) -> Claims:
    """The claims of a logout token: `jti`, and `sub` or `sid`. Raises as `verify_id_token`."""
    claims = _signed(provider, token)
    _check_parties(provider, claims)
    events = claims.get("events")
    if not isinstance(events, dict) or not isinstance(events.get(LOGOUT_EVENT), dict):
        raise SingleSignOnFailed("events_wrong")
    if "nonce" in claims:  # an ID token in disguise
        raise SingleSignOnFailed("nonce_wrong")
    _check_times(claims)
    _text(claims, "jti")
    if "sub" not in claims and "sid" not in claims:
        raise SingleSignOnFailed("sub_wrong")
    for name in ("sub", "sid"):
        if name in claims:
            _text(claims, name)
    return claims


def check_access_token(claims: Claims, access_token: str) -> None:
    """Compares `at_hash` where the ID token has one; raises SingleSignOnFailed (`at_hash_wrong`)."""
    # Both algorithms that are accepted hash with SHA-256.
    half = hashlib.sha256(access_token.encode()).digest()[:16]
    wanted = urlsafe_b64encode(half).rstrip(b"=").decode()
    if "at_hash" in claims and not _same(claims["at_hash"], wanted):
        raise SingleSignOnFailed("at_hash_wrong")


def _signed(provider: Provider, token: object) -> dict[str, Any]:
    """The payload, signed by a key of the provider with one of two algorithms."""
    import jwt  # only where single sign-on is used

    if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN or not token.isascii():
        raise SingleSignOnFailed("token_invalid")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.exceptions.PyJWTError, ValueError, RecursionError):
        raise SingleSignOnFailed("token_invalid") from None
    if header.get("alg") not in metadata.ALGORITHMS:
        raise SingleSignOnFailed("algorithm_refused")
    if "crit" in header or header.get("b64", True) is not True:
        raise SingleSignOnFailed("token_invalid")
    key = metadata.signing_key(provider, header)
    try:
        payload = jwt.PyJWS().decode(token, key, algorithms=[header["alg"]])
    except (jwt.exceptions.PyJWTError, ValueError, TypeError):
        raise SingleSignOnFailed("signature_wrong") from None
    try:
        claims = canonical.loads(payload)
    except canonical.NotCanonical:
        claims = None
    if not isinstance(claims, dict):
        raise SingleSignOnFailed("token_invalid")
    return claims


def _check_parties(provider: Provider, claims: Claims) -> None:
    """Who issued it, and for whom; more than one addressee needs `azp`."""
    if claims.get("iss") != provider.issuer:
        raise SingleSignOnFailed("issuer_wrong")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if provider.client_id not in audiences:
        raise SingleSignOnFailed("audience_wrong")
    party = claims.get("azp")
    if (len(audiences) > 1 or party is not None) and party != provider.client_id:
        raise SingleSignOnFailed("party_wrong")


def _check_times(claims: Claims) -> None:
    """`exp`, `iat` and, where it is there, `nbf`, with a minute of leeway."""
    now = clock.now_ms() / 1000
    issued, ends = _time(claims, "iat"), _time(claims, "exp")
    skew_ms = round((issued - now) * 1000)
    if issued > now + LEEWAY_S:
        raise ClocksDiffer("issued_in_future", skew_ms)
    if ends + LEEWAY_S <= now:
        raise ClocksDiffer("expired", skew_ms)
    if "nbf" in claims and _time(claims, "nbf") > now + LEEWAY_S:
        raise ClocksDiffer("not_yet_valid", round((_time(claims, "nbf") - now) * 1000))
    if "auth_time" in claims:
        _time(claims, "auth_time")


def _time(claims: Claims, name: str) -> float:
    found = claims.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < END_OF_TIME:
        raise SingleSignOnFailed(f"{name}_wrong")
    return found


def _text(claims: Claims, name: str) -> None:
    if not ids.is_text_id(claims.get(name), MAX_SUB):
        raise SingleSignOnFailed(f"{name}_wrong")


def _same(told: object, wanted: str) -> bool:
    return isinstance(told, str) and told.isascii() and hmac.compare_digest(told, wanted)
