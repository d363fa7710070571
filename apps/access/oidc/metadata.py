"""What a provider says of itself: its discovery document and its keys, kept in memory and renewed in time.

Documents are asked for again after an hour; one that cannot be renewed stays in use while it is younger than a day.
Keys are asked for again at once when a token names one that is not known, but at most every ten seconds: anybody
can make up names of keys. A failure is remembered for a few seconds, so that nobody queues for a dead provider.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from apps.access.oidc import http
from apps.access.oidc.errors import ProviderUnreachable, SingleSignOnFailed
from apps.core import clock
from qinglong.single_sign_on import Provider, is_loopback

ALGORITHMS = ("RS256", "ES256")
KEPT_S = 3600.0
STALE_S = 86_400.0
FAILED_S = 5.0
KEYS_AGAIN_S = 10.0
MIN_RSA_BITS = 2048
MAX_KEYS = 100
MAX_URL = 2048

T = TypeVar("T")
monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Metadata:
    """The part of a discovery document that we use, checked."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None
    end_session_endpoint: str | None
    basic: bool
    names_issuer: bool
    pkce: bool | None
    algorithms: tuple[str, ...]
    skew_ms: int | None


@dataclass
class _Kept:
    """One thing that was fetched; `failed` is why the last try brought nothing."""

    value: Any = None
    at: float = 0.0
    tried: float = float("-inf")
    failed: str = ""


@dataclass
class _Shelf:
    lock: threading.Lock = field(default_factory=threading.Lock)
    metadata: _Kept = field(default_factory=_Kept)
    keys: _Kept = field(default_factory=_Kept)


_shelves: dict[tuple[str, str], _Shelf] = {}
_shelves_lock = threading.Lock()


def forget() -> None:
    """Drops everything that was learnt; for tests, and for a look at how a provider is now."""
    with _shelves_lock:
        _shelves.clear()


def metadata(provider: Provider) -> Metadata:
    """The discovery document; raises ProviderUnreachable."""
    shelf = _shelf(provider)
    return _renewed(shelf, shelf.metadata, lambda: discover(provider))


def signing_key(provider: Provider, header: Mapping[str, Any]) -> Any:
    """The key that a token's header names and that fits its algorithm, as a public key of `cryptography`.

    Raises ProviderUnreachable, and SingleSignOnFailed (`key_unknown`).
    """
    address = metadata(provider).jwks_uri
    shelf = _shelf(provider)
    keys = _renewed(shelf, shelf.keys, lambda: fetch_keys(address))
    found = _pick(keys, header)
    if found is None and monotonic() - shelf.keys.tried >= KEYS_AGAIN_S:
        keys = _renewed(shelf, shelf.keys, lambda: fetch_keys(address), kept_s=KEYS_AGAIN_S)
        found = _pick(keys, header)
    if found is None:
        raise SingleSignOnFailed("key_unknown")
    return found


def discover(provider: Provider) -> Metadata:
    """Asks for the discovery document now, and checks it; raises ProviderUnreachable."""
    answer = http.call("GET", provider.issuer.rstrip("/") + "/.well-known/openid-configuration")
    if answer.status != 200:
        raise ProviderUnreachable(f"discovery_status_{answer.status}")
    told = answer.json()
    if told.get("issuer") != provider.issuer:
        raise ProviderUnreachable("issuer_differs")
    methods = _texts(told, "token_endpoint_auth_methods_supported")
    pkce = _texts(told, "code_challenge_methods_supported")
    return Metadata(
        authorization_endpoint=_address(provider, told, "authorization_endpoint"),
        token_endpoint=_address(provider, told, "token_endpoint"),
        jwks_uri=_address(provider, told, "jwks_uri"),
        userinfo_endpoint=_optional(provider, told, "userinfo_endpoint"),
        end_session_endpoint=_optional(provider, told, "end_session_endpoint"),
        basic=not methods or "client_secret_basic" in methods or "client_secret_post" not in methods,
        names_issuer=told.get("authorization_response_iss_parameter_supported") is True,
        pkce=("S256" in pkce) if pkce else None,
        algorithms=_texts(told, "id_token_signing_alg_values_supported"),
        skew_ms=_skew(answer.headers.get("date", "")),
    )


def fetch_keys(address: str) -> list[dict[str, Any]]:
    """Asks for the keys now; those that are none of ours to use are left out. Raises ProviderUnreachable."""
    answer = http.call("GET", address)
    if answer.status != 200:
        raise ProviderUnreachable(f"keys_status_{answer.status}")
    told = answer.json().get("keys")
    if not isinstance(told, list) or len(told) > MAX_KEYS:
        raise ProviderUnreachable("keys_invalid")
    return [usable for jwk in told if (usable := _usable(jwk)) is not None]


def is_usable(jwk: dict[str, Any]) -> bool:
    """Whether a key would be used for a token signed with it."""
    algorithm = "RS256" if jwk["kty"] == "RSA" else "ES256"
    return jwk.get("alg", algorithm) == algorithm and _public(jwk, algorithm) is not None


def _shelf(provider: Provider) -> _Shelf:
    with _shelves_lock:
        return _shelves.setdefault((provider.alias, provider.issuer), _Shelf())


def _renewed(shelf: _Shelf, kept: _Kept, fetch: Callable[[], T], kept_s: float = KEPT_S) -> T:
    """What is kept while it is young, else what `fetch` brings; an old one rather than none."""
    if (young := _young(kept, kept_s)) is not None:
        return young  # type: ignore[no-any-return]
    if not http.acquire(shelf.lock):
        if (stale := _young(kept, STALE_S)) is not None:
            return stale  # type: ignore[no-any-return]
        raise ProviderUnreachable("busy")
    try:
        if (young := _young(kept, kept_s)) is not None:
            return young  # type: ignore[no-any-return]
        if monotonic() - kept.tried >= FAILED_S or not kept.failed:
            try:
                kept.value, kept.failed = fetch(), ""
                kept.at = kept.tried = monotonic()
            except ProviderUnreachable as error:
                kept.failed, kept.tried = error.reason, monotonic()
        if (stale := _young(kept, STALE_S)) is not None:
            return stale  # type: ignore[no-any-return]
        raise ProviderUnreachable(kept.failed or "never_fetched")
    finally:
        shelf.lock.release()


def _young(kept: _Kept, kept_s: float) -> Any:
    return kept.value if kept.value is not None and monotonic() - kept.at < kept_s else None


def _address(provider: Provider, told: Mapping[str, Any], name: str) -> str:
    """An endpoint: `https`, or `http` on this machine where the issuer is there too."""
    url = told.get(name)
    if not isinstance(url, str) or not 0 < len(url) <= MAX_URL or not url.isprintable() or " " in url:
        raise ProviderUnreachable(f"{name}_invalid")
    try:
        parts = urlsplit(url)
        _port = parts.port
    except ValueError:
        raise ProviderUnreachable(f"{name}_invalid") from None
    host = parts.hostname or ""
    home = urlsplit(provider.issuer).hostname or ""
    safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host) and is_loopback(home))
    # A provider out there has no business inside this machine.
    inside = is_loopback(host) and not is_loopback(home)
    if not safe or inside or not host or parts.username is not None or parts.fragment:
        raise ProviderUnreachable(f"{name}_invalid")
    return url


def _optional(provider: Provider, told: Mapping[str, Any], name: str) -> str | None:
    return _address(provider, told, name) if told.get(name) else None


def _texts(told: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = told.get(name)
    return tuple(text for text in found if isinstance(text, str)) if isinstance(found, list) else ()


def _skew(date: str) -> int | None:
    """The clock of whoever answered minus ours, in milliseconds; the header has whole seconds."""
    try:
        return clock.to_ms(parsedate_to_datetime(date)) + 500 - clock.now_ms()
    except (ValueError, TypeError, OverflowError):
        return None


def _usable(jwk: object) -> dict[str, Any] | None:
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or jwk.get("kty") not in ("RSA", "EC"):
        return None
    return jwk


def _pick(keys: list[dict[str, Any]], header: Mapping[str, Any]) -> Any:
    """The one key for a header; without a name there must be only one that fits."""
    algorithm, name = header["alg"], header.get("kid")
    kind = "RSA" if algorithm == "RS256" else "EC"
    fitting = [
        jwk
        for jwk in keys
        if jwk["kty"] == kind
        and jwk.get("alg", algorithm) == algorithm
        and (name is None or jwk.get("kid") == name)
    ]
    return _public(fitting[0], algorithm) if len(fitting) == 1 else None


def _public(jwk: dict[str, Any], algorithm: str) -> Any:
    """The key itself, or None for one that is broken, short or on another curve."""
    import jwt  # only where single sign-on is used

    try:
        key = jwt.PyJWK.from_dict(jwk, algorithm=algorithm).key
    except (jwt.exceptions.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if algorithm == "RS256":
        return key if getattr(key, "key_size", 0) >= MIN_RSA_BITS else None
    return key if getattr(getattr(key, "curve", None), "name", "") == "secp256r1" else None
