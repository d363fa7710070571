"""One sign-in on its way: what this browser keeps while the person is at the provider.

Each has a cookie of its own, so that tabs do not disturb each other. The cookie holds a random secret; state, nonce
and PKCE verifier are made from it, and the server keeps none of them: a table only remembers which states were
used (`services.oidc.use_once`).
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponseBase

from apps.access.oidc import providers
from apps.access.oidc.errors import NotBegunHere
from apps.access.oidc.metadata import Metadata
from apps.core import canonical, clock
from qinglong.single_sign_on import Provider

LIFETIME_S = 600
COOKIE = "ql_oidc_"
MOST = 5
MAX_NEXT = 1000
# Named anew when the parts change: a cookie of another version begins no flow.
_SALT = "qinglong.oidc.flow.2"


@dataclass(frozen=True)
class Flow:
    """`link` is the id of the live session that asked to add the identity, `fresh` wants a new sign-in there.

    `invitation` is the id of the one whose link this browser has shown; the cookie is signed and keeps no link.
    """

    alias: str
    secret: str = field(repr=False)
    next: str
    began_ms: int
    link: str = ""
    fresh: bool = False
    invitation: str = ""

    @property
    def state(self) -> str:
        return self._part("state")

    @property
    def nonce(self) -> str:
        return self._part("nonce")

    @property
    def verifier(self) -> str:
        return self._part("verifier")

    def _part(self, name: str) -> str:
        digest = hmac.digest(self.secret.encode(), name.encode(), "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=").decode()


def begin(
    provider: Provider, next_url: str, *, link: str = "", fresh: bool = False, invitation: str = ""
) -> Flow:
    """A new flow; a very long `next` is let go."""
    kept = next_url if len(next_url) <= MAX_NEXT else ""
    return Flow(provider.alias, secrets.token_urlsafe(32), kept, clock.now_ms(), link, fresh, invitation)


def authorization_url(provider: Provider, known: Metadata, flow: Flow) -> str:
    """Where the browser goes."""
    asked = {
        "response_type": "code",
        "scope": " ".join(provider.scopes),
        "client_id": provider.client_id,
        "redirect_uri": providers.callback_url(provider),
        "state": flow.state,
        "nonce": flow.nonce,
        "code_challenge": urlsafe_b64encode(sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    if flow.fresh:
        asked |= {"prompt": "login", "max_age": "0"}
    joint = "&" if "?" in known.authorization_endpoint else "?"
    return f"{known.authorization_endpoint}{joint}{urlencode(asked)}"


def keep(request: HttpRequest, response: HttpResponseBase, flow: Flow) -> None:
    """Gives the browser the flow's cookie; the oldest ones go when there are too many."""
    begun = [name for name in request.COOKIES if name.startswith(COOKIE)]
    for name in sorted(begun, key=lambda name: _began(request.COOKIES[name]))[
        : max(0, len(begun) - MOST + 1)
    ]:
        drop(response, name)
    parts = [flow.alias, flow.secret, flow.next, flow.began_ms, flow.link, flow.fresh, flow.invitation]
    response.set_cookie(
        cookie_name(flow.state),
        signing.dumps(parts, salt=_SALT),
        max_age=LIFETIME_S,
        path=_path(),
        secure=settings.SECURE,
        httponly=True,
        samesite="Lax",
    )


def take(request: HttpRequest, alias: str) -> Flow:
    """The flow that an answer belongs to: begun in this browser, with this provider, not long ago.

    Raises NotBegunHere. That it was not used before is for `use_once` to say.
    """
    state = request.GET.get("state", "")
    flow = _read(request.COOKIES.get(cookie_name(state), ""))
    if flow is None:
        raise NotBegunHere("no_cookie")
    if not hmac.compare_digest(flow.state.encode(), state.encode()):
        raise NotBegunHere("state_wrong")
    if flow.alias != alias:
        raise NotBegunHere("other_provider")
    if not 0 <= clock.now_ms() - flow.began_ms < LIFETIME_S * 1000:
        raise NotBegunHere("too_old")
    return flow


def drop(response: HttpResponseBase, name: str) -> None:
    """Takes a flow's cookie back."""
    response.delete_cookie(name, path=_path(), samesite="Lax")


def cookie_name(state: str) -> str:
    """The name of the cookie for a state; any text gives a harmless one."""
    return COOKIE + canonical.sha256(state.encode("utf-8", "surrogatepass").hex())[:16]


def _path() -> str:
    return f"{settings.PREFIX}/oidc/"


def _read(text: str) -> Flow | None:
    try:
        parts: Any = signing.loads(text, salt=_SALT)
    except signing.BadSignature:
        return None
    alias, secret, next_url, began_ms, link, fresh, invitation = parts
    return Flow(alias, secret, next_url, began_ms, link, fresh, invitation)


def _began(text: str) -> int:
    flow = _read(text)
    return 0 if flow is None else flow.began_ms
