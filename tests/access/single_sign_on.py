"""Settings and a browser for sign-ins through `Hostile` providers."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from django.test import Client

from qinglong.single_sign_on import Provider, SingleSignOn
from tests.access.provider import CLIENT, SECRET, Hostile

BASE = "http://testserver"


def provider(there: Hostile, alias: str = "main", **options: Any) -> Provider:
    """A provider as the settings would have it."""
    plain: dict[str, Any] = {
        "name": alias.title(), "issuer": there.issuer, "client_id": CLIENT, "client_secret": SECRET,
        "scopes": ("openid", "profile"), "username_claim": "preferred_username", "groups_claim": "groups",
        "role_map": {}, "provision": True, "multi_factor": frozenset(), "hardware": frozenset(),
    }  # fmt: skip
    return Provider(alias=alias, **{**plain, **options})


def switched_on(*all_of_them: Provider, required: bool = False, break_glass: str = "") -> SingleSignOn:
    return SingleSignOn(all_of_them, required, break_glass, 12)


class Browser(Client):
    """A browser with cookies; `sign_in` goes to the provider and comes back."""

    def begin(self, alias: str = "main", **query: str) -> str:
        """The address at the provider that the panel sends it to."""
        path = "/oidc/login/" if alias == "main" else f"/oidc/login/{alias}/"
        answer = self.get(path, query)
        assert answer.status_code == 302, answer.content.decode()
        return str(answer.headers["Location"])

    def come_back(self, sent: dict[str, str], alias: str = "main") -> Any:
        return self.get("/oidc/callback/" if alias == "main" else f"/oidc/callback/{alias}/", sent)

    def sign_in(self, there: Hostile, alias: str = "main", **query: str) -> Any:
        """The answer of the callback."""
        return self.come_back(there.code(self.begin(alias, **query)), alias)

    @property
    def me(self) -> Any:
        """What the API says of the session; None for nobody."""
        answer = self.get("/api/v3/me")
        return answer.json() if answer.status_code == 200 else None


def code_of(answer: Any) -> str:
    """The code on a failure page."""
    found = re.search(r"<code>(oidc_[a-z_]+)</code>", answer.content.decode())
    assert found, answer.content.decode()
    return found[1]


def path_of(answer: Any) -> str:
    """Where a redirect leads."""
    assert answer.status_code == 302, answer.content.decode()
    return urlsplit(answer.headers["Location"]).path
