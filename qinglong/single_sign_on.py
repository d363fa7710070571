"""OpenID providers of an installation, out of `OIDC_*` (api.md, "Settings"); read once, typed and checked.

The first provider has plain names (`OIDC_ISSUER`); `OIDC_PROVIDERS` names further ones, whose settings carry their
name (`OIDC_PARTNER_ISSUER`). An unknown `OIDC_*` name stops the start, as with `QINGLONG_*`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qinglong.environment import ConfigurationError

FIRST = "main"
ROLES = ("viewer", "operator", "admin")
_ALIAS = re.compile(r"[a-z][a-z0-9-]{0,30}")
_CLAIM = re.compile(r"[A-Za-z0-9_:/.-]{1,128}")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")
_TEXTS = ("CLIENT_SECRET", "ROLE_MAP")
_OWN = frozenset(
    {
        "ISSUER", "CLIENT_ID", "CLIENT_SECRET", "CLIENT_SECRET_FILE", "SCOPES", "USERNAME_CLAIM", "GROUPS_CLAIM",
        "ROLE_MAP", "ROLE_MAP_FILE", "NAME", "PROVISION", "MULTI_FACTOR", "HARDWARE",
    }
)  # fmt: skip
_SHARED = frozenset({"REQUIRED", "BREAK_GLASS", "PROVIDERS", "SESSION_HOURS"})
_MAX_FILE = 65_536

RoleMap = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Provider:
    """One provider. `role_map` gives for each group the roles in projects (id or slug), never `owner`.

    `multi_factor` and `hardware` are the values of `acr` or `amr` that prove such a sign-in.
    """

    alias: str
    name: str
    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: tuple[str, ...]
    username_claim: str
    groups_claim: str
    role_map: RoleMap
    provision: bool
    multi_factor: frozenset[str]
    hardware: frozenset[str]

    @property
    def key(self) -> str:
        """The provider of the directory's bindings."""
        return f"oidc:{self.alias}"


@dataclass(frozen=True)
class SingleSignOn:
    """`break_glass` is the one account that still has a password where `required` is set."""

    providers: tuple[Provider, ...]
    required: bool
    break_glass: str
    session_hours: int


def read(values: Mapping[str, str], base_url: str) -> SingleSignOn:
    """Checks and types the settings; raises ConfigurationError, which never holds a value."""
    further = values.get("OIDC_PROVIDERS", "").replace(",", " ").split()
    prefixes = {FIRST: "OIDC_"} | {alias: f"OIDC_{alias.upper().replace('-', '_')}_" for alias in further}
    if any(_ALIAS.fullmatch(alias) is None for alias in further) or len(prefixes) != len(further) + 1:
        raise ConfigurationError(
            "oidc_providers_invalid",
            f"OIDC_PROVIDERS lists names of small letters, digits and -, each once, and not {FIRST}.",
        )
    known = {f"OIDC_{name}" for name in _SHARED} | {
        prefix + name for prefix in prefixes.values() for name in _OWN
    }
    for name in sorted(values):
        if name.startswith("OIDC_") and name not in known:
            raise ConfigurationError(
                "unknown_setting", f"{name} is not a setting of QingLong; check the spelling."
            )
    chosen = [(alias, prefix) for alias, prefix in prefixes.items() if alias != FIRST or _any(values, prefix)]
    providers = tuple(_provider(values, alias, prefix) for alias, prefix in chosen)
    if providers and not base_url:
        raise ConfigurationError(
            "oidc_needs_base_url",
            "Set QINGLONG_BASE_URL: the provider sends people back to that address.",
        )
    required = _switch(values, "OIDC_REQUIRED")
    break_glass = values.get("OIDC_BREAK_GLASS", "").strip()
    if required and not (providers and break_glass):
        raise ConfigurationError(
            "oidc_break_glass_missing",
            "OIDC_REQUIRED needs a provider, and OIDC_BREAK_GLASS: the one user name that keeps its password.",
        )
    return SingleSignOn(providers, required, break_glass, _hours(values))


def _any(values: Mapping[str, str], prefix: str) -> bool:
    return any(values.get(prefix + name) for name in _OWN)


def _provider(values: Mapping[str, str], alias: str, prefix: str) -> Provider:
    client_id = values.get(f"{prefix}CLIENT_ID", "").strip()
    if not client_id:
        raise ConfigurationError("oidc_client_id_missing", f"Set {prefix}CLIENT_ID beside {prefix}ISSUER.")
    texts = {name: _text(values, prefix + name) for name in _TEXTS}
    scopes = tuple((values.get(f"{prefix}SCOPES") or "openid profile email").split())
    if "openid" not in scopes or any(_SCOPE.fullmatch(scope) is None for scope in scopes):
        raise ConfigurationError(
            "oidc_scopes_invalid", f"{prefix}SCOPES is a list of words with openid in it."
        )
    return Provider(
        alias=alias,
        name=values.get(f"{prefix}NAME", "").strip()[:64] or _host(values, prefix),
        issuer=_issuer(values, prefix),
        client_id=client_id,
        client_secret=texts["CLIENT_SECRET"],
        scopes=scopes,
        username_claim=_claim(values, f"{prefix}USERNAME_CLAIM", "preferred_username"),
        groups_claim=_claim(values, f"{prefix}GROUPS_CLAIM", "groups"),
        role_map=_role_map(texts["ROLE_MAP"], f"{prefix}ROLE_MAP"),
        provision=_switch(values, f"{prefix}PROVISION"),
        multi_factor=frozenset(values.get(f"{prefix}MULTI_FACTOR", "").split()),
        hardware=frozenset(values.get(f"{prefix}HARDWARE", "").split()),
    )


def _issuer(values: Mapping[str, str], prefix: str) -> str:
    """Exactly as written, since tokens must name it so; `http` only on this machine."""
    issuer = values.get(f"{prefix}ISSUER", "").strip()
    try:
        parts = urlsplit(issuer)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    secure = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    if not secure or not host or parts.username is not None or parts.query or parts.fragment:
        raise ConfigurationError(
            "oidc_issuer_invalid", f"{prefix}ISSUER is the provider's address: https://host[:port][/path]."
        )
    return issuer


def is_loopback(host: str) -> bool:
    """Whether a host can only be this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(values: Mapping[str, str], prefix: str) -> str:
    return urlsplit(_issuer(values, prefix)).hostname or ""


def _text(values: Mapping[str, str], name: str) -> str:
    """The value of `name`, or the contents of the file that `…_FILE` names."""
    path = values.get(f"{name}_FILE")
    if not path:
        return values.get(name, "")
    if values.get(name):
        raise ConfigurationError("setting_twice", f"Set {name} or {name}_FILE, not both.")
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_FILE + 1).decode("utf-8")
    except (OSError, ValueError):
        raise ConfigurationError("file_not_readable", f"The file of {name}_FILE cannot be read.") from None
    if len(text) > _MAX_FILE:
        raise ConfigurationError("file_not_readable", f"The file of {name}_FILE is larger than 64 KiB.")
    return text.strip()


def _role_map(text: str, name: str) -> RoleMap:
    if not text.strip():
        return {}
    broken = ConfigurationError(
        "oidc_role_map_invalid",
        f'{name} is JSON: {{"group": {{"project": "viewer"}}}}, with the roles {", ".join(ROLES)}. '
        "Ownership is given by people only.",
    )
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise broken from None
    if not isinstance(found, dict) or not all(isinstance(roles, dict) for roles in found.values()):
        raise broken
    if any(role not in ROLES for roles in found.values() for role in roles.values()):
        raise broken
    return found


def _claim(values: Mapping[str, str], name: str, default: str) -> str:
    claim = values.get(name) or default
    if _CLAIM.fullmatch(claim) is None:
        raise ConfigurationError("oidc_claim_invalid", f"{name} is the name of a claim.")
    return claim


def _switch(values: Mapping[str, str], name: str) -> bool:
    text = (values.get(name) or "0").strip().lower()
    if text not in ("0", "1", "false", "true", "no", "yes", "off", "on"):
        raise ConfigurationError("switch_invalid", f"{name} is 1 or 0.")
    return text in ("1", "true", "yes", "on")


def _hours(values: Mapping[str, str]) -> int:
    text = values.get("OIDC_SESSION_HOURS") or "12"
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= 336:
        raise ConfigurationError("number_invalid", "OIDC_SESSION_HOURS is a whole number from 1 to 336.")
    return int(text)
