"""mozilla-django-oidc's flow with our own rules at each step (libraries.md 5c says why each is needed).

The library walks through it: code → tokens → ID token → claims. Here each step is bounded, verified and tied to
one provider, and the end is no account but an identity; whose it is, `services` decide.
"""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote_plus, urlencode

from django.http import HttpRequest
from mozilla_django_oidc.auth import OIDCAuthenticationBackend

from apps.access.oidc import http, metadata, providers, tokens
from apps.access.oidc.errors import ProviderUnreachable, SingleSignOnFailed
from apps.access.oidc.flow import Flow
from apps.core import clock
from apps.identity.principals import Assurance
from qinglong.single_sign_on import Provider

MAX_CODE = 4096
MAX_GROUPS = 1000
MAX_GROUP = 512
log = logging.getLogger("qinglong.access")
_ERROR = re.compile(r"[a-z_]{1,40}")


@dataclass(frozen=True)
class Identity:
    """Who a provider says it is. `subject` and `session` are named as the directory and the sessions keep them."""

    provider: Provider
    subject: str
    session: str
    assurance: Assurance
    authenticated_at: datetime
    username: str
    groups: frozenset[str]
    skew_ms: int
    claims: Mapping[str, Any] = field(repr=False)


def identify(request: HttpRequest, provider: Provider, flow: Flow) -> Identity:
    """The identity behind the code in a callback's query; raises SingleSignOnFailed and its kinds."""
    if not 0 < len(request.GET.get("code", "")) <= MAX_CODE:
        raise SingleSignOnFailed("code_missing")
    try:
        found = Backend(provider).authenticate(request, nonce=flow.nonce, code_verifier=flow.verifier)
    except SingleSignOnFailed:
        raise
    except Exception:
        # The library's frames hold code and secret: the log shows lines, a page of errors would show values.
        log.exception("sign-in through %s", provider.alias)
        raise SingleSignOnFailed("unexpected") from None
    if not isinstance(found, Identity):
        raise SingleSignOnFailed("token_invalid")
    return found


class Backend(OIDCAuthenticationBackend):  # type: ignore[misc]  # the library has no types
    """One provider's. It is not among AUTHENTICATION_BACKENDS: only `identify` calls it."""

    def __init__(self, provider: Provider) -> None:
        """The library reads one provider from the settings here; ours is given."""
        self.provider = provider
        self.OIDC_RP_CLIENT_ID = provider.client_id
        self.OIDC_RP_CLIENT_SECRET = provider.client_secret

    @staticmethod
    def get_settings(attr: str, *default: Any) -> Any:
        """The library's settings are not ours; its walk needs the name of the callback only."""
        return "oidc-callback" if attr == "OIDC_AUTHENTICATION_CALLBACK_URL" else default[0]

    def get_token(self, payload: dict[str, str]) -> dict[str, Any]:
        """Exchanges the code; the redirect URI is the registered one, whatever host was asked."""
        known = metadata.metadata(self.provider)
        sent = {**payload, "redirect_uri": providers.callback_url(self.provider)}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        secret = sent.pop("client_secret")
        if secret and known.basic:
            pair = f"{quote_plus(self.provider.client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        elif secret:
            sent["client_secret"] = secret
        answer = http.call("POST", known.token_endpoint, body=urlencode(sent).encode(), headers=headers)
        if answer.status == 200:
            return answer.json()
        if not 400 <= answer.status < 500:
            raise ProviderUnreachable(f"token_status_{answer.status}")
        raise SingleSignOnFailed(f"code_refused_{_told_error(answer)}")

    def verify_token(self, token: object, **options: Any) -> tokens.Claims:
        """Every claim, not the signature alone."""
        return tokens.verify_id_token(self.provider, token, options["nonce"])

    def store_tokens(self, access_token: object, id_token: object) -> None:
        """No token is ever kept."""

    def get_or_create_user(self, access_token: object, id_token: object, payload: tokens.Claims) -> Identity:
        """The identity; userinfo is asked only for what the ID token does not say."""
        wanted = {self.provider.username_claim} | (
            {self.provider.groups_claim} if self.provider.role_map else set()
        )
        claims = payload
        if any(claim(payload, name) is None for name in wanted):
            claims = {**self.get_userinfo(access_token, id_token, payload), **payload}
        now_ms = clock.now_ms()
        proved = payload.get("auth_time", payload["iat"])
        sid = payload.get("sid")
        username = claim(claims, self.provider.username_claim)
        return Identity(
            provider=self.provider,
            subject=providers.provider_subject(self.provider, payload["sub"]),
            session=providers.named(self.provider, sid) if isinstance(sid, str) and sid else "",
            assurance=_assurance(self.provider, payload),
            authenticated_at=clock.from_ms(min(int(proved * 1000), now_ms)),
            username=username if isinstance(username, str) else "",
            groups=_groups(self.provider, claims),
            skew_ms=round(payload["iat"] * 1000) - now_ms,
            claims=claims,
        )

    def get_userinfo(self, access_token: object, id_token: object, payload: tokens.Claims) -> dict[str, Any]:
        """The claims of the userinfo endpoint, where there is one: about the same `sub`, or refused."""
        address = metadata.metadata(self.provider).userinfo_endpoint
        if address is None or not isinstance(access_token, str) or not access_token.isascii():
            return {}
        tokens.check_access_token(payload, access_token)
        answer = http.call("GET", address, headers={"Authorization": f"Bearer {access_token.strip()}"})
        if answer.status != 200:
            # Not let through: without the groups all roles that come from them would be taken away.
            raise ProviderUnreachable(f"userinfo_status_{answer.status}")
        found = answer.json()
        if found.get("sub") != payload["sub"]:
            raise SingleSignOnFailed("userinfo_of_another")
        return found


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, else by the path that the dots in it make; None where there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _groups(provider: Provider, claims: Mapping[str, Any]) -> frozenset[str]:
    """The person's groups; an answer that leaves them out for their number must not look like none."""
    elsewhere = claims.get("_claim_names")
    if provider.role_map and isinstance(elsewhere, dict) and provider.groups_claim in elsewhere:
        raise SingleSignOnFailed("groups_elsewhere")
    told = claim(claims, provider.groups_claim)
    groups = [told] if isinstance(told, str) else [] if told is None else told
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise SingleSignOnFailed("groups_wrong")
    if not all(isinstance(group, str) and len(group) <= MAX_GROUP for group in groups):
        raise SingleSignOnFailed("groups_wrong")
    return frozenset(groups)


def _assurance(provider: Provider, claims: tokens.Claims) -> Assurance:
    """Strong only when this very token says so with a value that is on the list (§6.4.6)."""
    methods = claims.get("amr")
    values = [claims.get("acr"), *(methods if isinstance(methods, list) else [])]
    told = {value for value in values if isinstance(value, str)}
    if told & provider.hardware:
        return Assurance.HARDWARE
    return Assurance.MULTI_FACTOR if told & provider.multi_factor else Assurance.SINGLE_FACTOR


def _told_error(answer: http.Answer) -> str:
    """The provider's own word for it, where it is one."""
    try:
        told = answer.json().get("error")
    except ProviderUnreachable:
        told = None
    return told if isinstance(told, str) and _ERROR.fullmatch(told) else "without_a_word"
