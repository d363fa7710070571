"""The login doctor: is single sign-on set up so that it can work, and what happened to the last who tried?

It asks the provider itself, so it is never part of showing a page: somebody presses a button or runs a command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from apps.access.models import KnownIssuer, ProviderSignIn
from apps.access.oidc import metadata, providers
from apps.access.oidc.errors import ProviderUnreachable
from apps.access.oidc.tokens import LEEWAY_S
from apps.core.errors import NotFound
from apps.projects import queries as projects
from qinglong.single_sign_on import Provider

NOTABLE_SKEW_MS = 5_000


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    level: Level
    code: str
    sentence: str | Promise


def addresses(provider: Provider) -> list[tuple[str | Promise, str]]:
    """What has to be registered at the provider: what it is called there, and our address."""
    return [
        (_("Redirect URI"), providers.callback_url(provider)),
        (_("Redirect URI after sign-out"), providers.signed_out_url()),
        (_("Back-channel logout URI"), providers.logout_url(provider)),
    ]


def examine(provider: Provider) -> list[Finding]:
    """Everything that can be found out without anybody signing in; asks the provider twice at most."""
    return [*_at_the_provider(provider), *_here(provider)]


def recent(provider: Provider, count: int = 20) -> list[ProviderSignIn]:
    """The last sign-ins through a provider, newest first, with masked claims."""
    rows = ProviderSignIn.objects.filter(provider=provider.key)
    return list(rows.order_by("-at", "-id")[:count])


def _at_the_provider(provider: Provider) -> Iterator[Finding]:
    try:
        known = metadata.discover(provider)
    except ProviderUnreachable as error:
        yield Finding(Level.FAILURE, error.reason, _why(error.reason))
        return
    yield Finding(Level.OK, "discovery", _("The provider answers, and its discovery document is right."))
    yield from _clock(known.skew_ms)
    yield from _abilities(known)
    try:
        keys = metadata.fetch_keys(known.jwks_uri)
    except ProviderUnreachable as error:
        yield Finding(Level.FAILURE, error.reason, _("The keys of the provider cannot be read."))
        return
    count = sum(metadata.is_usable(jwk) for jwk in keys)
    if count:
        yield Finding(Level.OK, "keys", format_lazy(_("Keys that can be used: {count}."), count=count))
    else:
        yield Finding(
            Level.FAILURE, "keys_unusable", _("None of the keys is for RS256 or ES256 and long enough.")
        )


def _clock(skew_ms: int | None) -> Iterator[Finding]:
    if skew_ms is None:
        yield Finding(Level.WARNING, "clock_unknown", _("The provider does not say what time it has."))
        return
    seconds = round(skew_ms / 1000)
    sentence = format_lazy(
        _("Clock of the provider minus clock of the panel: {seconds} s; up to {most} s are tolerated."),
        seconds=seconds,
        most=LEEWAY_S,
    )
    level = Level.OK if abs(skew_ms) <= NOTABLE_SKEW_MS else Level.WARNING
    yield Finding(Level.FAILURE if abs(skew_ms) > LEEWAY_S * 1000 else level, "clock_skew", sentence)


def _abilities(known: metadata.Metadata) -> Iterator[Finding]:
    if known.algorithms and not set(known.algorithms) & set(metadata.ALGORITHMS):
        yield Finding(
            Level.FAILURE,
            "algorithms",
            _("The provider signs with none of RS256 and ES256; choose one there."),
        )
    if known.pkce is False:
        yield Finding(Level.WARNING, "pkce", _("The provider does not say that it knows PKCE with S256."))
    if known.end_session_endpoint is None:
        yield Finding(
            Level.WARNING,
            "end_session",
            _("Signing out here does not sign out there: it has no address for that."),
        )


def _here(provider: Provider) -> Iterator[Finding]:
    if KnownIssuer.objects.filter(pk=provider.key).exclude(issuer=provider.issuer).exists():
        yield Finding(
            Level.FAILURE,
            "issuer_changed",
            format_lazy(
                _(
                    "The people of this provider are known by another issuer. Name the new one apart in "
                    "OIDC_PROVIDERS; or, where everybody keeps the same sub, accept it: {command}"
                ),
                command=f"qinglong login_doctor --accept-issuer {provider.alias}",
            ),
        )
    if not provider.client_secret:
        yield Finding(
            Level.WARNING, "client_secret", _("No client secret is set: the client must be a public one.")
        )
    unknown = sorted(
        {name for roles in provider.role_map.values() for name in roles if not _is_project(name)}
    )
    if unknown:
        yield Finding(
            Level.WARNING,
            "role_map",
            format_lazy(
                _("The role map names projects that are not here: {names}."), names=", ".join(unknown)
            ),
        )
    if not provider.provision:
        yield Finding(
            Level.OK,
            "provision",
            _("New people are not let in; those with an account add the provider to it."),
        )


def _is_project(name: str) -> bool:
    try:
        projects.find(name)
    except NotFound:
        return False
    return True


_REASONS = {
    "name_unknown": _("The name of the provider's host is not known to this machine's DNS."),
    "connection_refused": _("Nothing answers at the provider's address from here."),
    "tls": _("The provider's certificate is not trusted here, or is for another name."),
    "timeout": _("The provider took longer than 5 seconds."),
    "too_large": _("The provider's answer is larger than 256 KiB."),
    "issuer_differs": _("The document names another issuer: OIDC_ISSUER must be written exactly as there."),
    "not_json": _("What answers is no provider: the discovery document is not JSON."),
}


def _why(reason: str) -> str | Promise:
    return _REASONS.get(reason, _("The discovery document cannot be used."))
