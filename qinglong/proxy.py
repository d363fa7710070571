"""Requests as people made them outside: below a sub-path, and behind proxies that say for whom they ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
Network = IPv4Network | IPv6Network


class Proxied:
    """A WSGI application that learns client, scheme, host and path from outside.

    `X-Forwarded-For`, `-Proto` and `-Host` count when the peer lies in `trusted`; of a list of hosts or schemes the
    last counts, which is the nearest proxy's. Afterwards they are gone, so that `REMOTE_ADDR`, `wsgi.url_scheme`
    and `HTTP_HOST` are the only truth. `prefix` ("/ql" or "") is taken off a path that has it: a proxy may pass
    it on or leave it out, and a health check on this machine needs not know it.
    """

    def __init__(self, inner: Application, prefix: str, trusted: Sequence[Network]) -> None:
        self._inner = inner
        self._prefix = prefix
        self._trusted = tuple(trusted)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        told = {name: environ.pop(f"HTTP_X_FORWARDED_{name}", "") for name in ("FOR", "PROTO", "HOST")}
        peer = environ.get("REMOTE_ADDR", "")
        if self._trusts(peer):
            environ["REMOTE_ADDR"] = self._client(peer, told["FOR"])
            if (scheme := _last(told["PROTO"]).lower()) in ("http", "https"):
                environ["wsgi.url_scheme"] = scheme
            if host := _last(told["HOST"]):
                environ["HTTP_HOST"] = host
        path = environ.get("PATH_INFO", "")
        if f"{path}/".startswith(f"{self._prefix}/"):
            environ["PATH_INFO"] = path[len(self._prefix) :]
        return self._inner(environ, start_response)

    def _client(self, peer: str, told: str) -> str:
        """The first address, from here outwards, that is no trusted proxy's; what is no address ends the walk."""
        for seen in reversed(told.split(",")):
            address = _address(seen.strip())
            if address is None:
                break
            peer = address
            if not self._trusts(peer):
                break
        return peer

    def _trusts(self, peer: str) -> bool:
        if not self._trusted or (address := _address(peer)) is None:
            return False
        return any(ip_address(address) in network for network in self._trusted)


def _address(text: str) -> str | None:
    """An address as it is written canonically, an IPv4 one in IPv6 clothes as IPv4; None for anything else."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)


def _last(told: str) -> str:
    return told.rpartition(",")[2].strip()
