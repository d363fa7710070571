"""Where requests come from, and under which name this installation is known."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from apps.core.errors import InvalidInput

MAX_NETWORKS = 32
_NOWHERE = "0.0.0.0"  # noqa: S104 - no address to listen on, a stand-in for none
_HOME_NETWORK = 64


def address_of(request: Any) -> str:
    """The client. What trusted proxies say is in `REMOTE_ADDR` already (`qinglong.proxy`); headers never count."""
    return str(request.META.get("REMOTE_ADDR") or "")[:64]


def network_of(request: Any) -> str:
    """What counts as one client when failures are counted: an IPv4 address, or an IPv6 network of 64 bits."""
    found = _parsed(address_of(request))
    if found is None:
        return _NOWHERE
    if isinstance(found, IPv6Address):
        return str(ip_network((found, _HOME_NETWORK), strict=False).network_address)
    return str(found)


def check_networks(texts: Collection[str]) -> list[str]:
    """Addresses and networks in one form, sorted; raises InvalidInput for more than 32 and for what is none."""
    if len(texts) > MAX_NETWORKS:
        raise InvalidInput.field("addresses", _("At most 32 addresses or networks."))
    try:
        return sorted({str(ip_network(text.strip(), strict=False)) for text in texts})
    except ValueError as error:
        raise InvalidInput.field(
            "addresses", _("Not an address or network, like 203.0.113.7 or 10.0.0.0/8.")
        ) from error


def is_address(text: str) -> bool:
    """Whether a host is an address and no name."""
    return _parsed(text) is not None


def lies_in(address: str, networks: Iterable[str]) -> bool:
    """Whether an address is in one of the networks."""
    found = _parsed(address)
    return found is not None and any(found in ip_network(network) for network in networks)


def lie_in(inner: Collection[str], outer: Collection[str]) -> bool:
    """Whether each of some networks is part of one of others; no networks are all addresses there are."""
    if not outer:
        return True
    networks = [ip_network(text) for text in outer]
    return bool(inner) and all(any(_is_part(ip_network(text), one) for one in networks) for text in inner)


def _is_part(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    if isinstance(inner, IPv4Network) and isinstance(outer, IPv4Network):
        return inner.subnet_of(outer)
    return isinstance(inner, IPv6Network) and isinstance(outer, IPv6Network) and inner.subnet_of(outer)


def host_of(request: HttpRequest) -> str:
    """The host name of this installation: the configured one, else the one it was asked by (allowed hosts only)."""
    if settings.BASE_URL:
        return urlsplit(settings.BASE_URL).hostname or ""
    return urlsplit(f"//{request.get_host()}").hostname or ""


def origin_of(request: HttpRequest) -> str:
    """Scheme, host and port that browsers see."""
    if settings.BASE_URL:
        base = urlsplit(settings.BASE_URL)
        return f"{base.scheme}://{base.netloc}"
    return f"{request.scheme}://{request.get_host()}"


def invitation_link(request: Any, secret: str) -> str:
    """The address that somebody new is sent. Behind the `#`, which browsers send to nobody: no log can hold it."""
    return f"{origin_of(request)}{reverse('invitation')}#{secret}"


def _parsed(text: str) -> Any:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
