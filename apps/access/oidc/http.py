"""Asking a provider: one answer of bounded size within bounded time, redirects never followed.

Time-outs of a socket count anew with every byte; whoever drips would hold a thread for as long as they like. So
one clock runs over the whole call, and ends it by closing the connection.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from apps.access.oidc.errors import ProviderUnreachable

TIMEOUT_S = 5.0
MAX_BYTES = 262_144
# Of the panel's eight threads three may ask and two may wait for them; a provider that hangs must leave the others
# to everybody else.
AT_ONCE = 3
WAITING = 2

_places = threading.BoundedSemaphore(AT_ONCE)
_waiting = threading.BoundedSemaphore(WAITING)


@dataclass(frozen=True)
class Answer:
    """Status, headers (lower case) and body; `json()` for what must be a JSON object."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Raises ProviderUnreachable (`not_json`)."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProviderUnreachable("not_json")
        return found


def call(
    method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request, answered within 5 s by at most 256 KiB.

    Raises ProviderUnreachable: `name_unknown`, `connection_refused`, `tls`, `timeout`, `too_large`,
    `protocol`, or `busy` where too many calls are under way.
    """
    if not acquire(_places):
        raise ProviderUnreachable("busy")
    try:
        return _call(method, url, body, dict(headers or {}))
    finally:
        _places.release()


def acquire(lock: threading.Lock | threading.Semaphore) -> bool:
    """Takes a lock that somebody holds who asks a provider; waits only where few others wait, and 5 s at most."""
    if lock.acquire(blocking=False):
        return True
    if not _waiting.acquire(blocking=False):
        return False
    try:
        return lock.acquire(timeout=TIMEOUT_S)
    finally:
        _waiting.release()


def _call(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Answer:
    parts = urlsplit(url)
    secure, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if secure else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    watch = _Watch(TIMEOUT_S)
    try:
        with _connected(host, port, watch) as plain:
            stream = _secured(plain, host, watch) if secure else plain
            with stream, watch.over(stream):
                if isinstance(stream, ssl.SSLSocket):
                    stream.do_handshake()
                connection = kind(host, port)
                connection.sock = stream
                connection.request(method, path, body, {"Accept": "application/json", **headers})
                answer = connection.getresponse()
                text = answer.read(MAX_BYTES + 1)
                told = {name.lower(): value for name, value in answer.getheaders()}
    except socket.gaierror:
        raise ProviderUnreachable("name_unknown") from None
    except ssl.SSLError:
        raise ProviderUnreachable("timeout" if watch.rang else "tls") from None
    except TimeoutError:
        raise ProviderUnreachable("timeout") from None
    except (http.client.HTTPException, ValueError):
        raise ProviderUnreachable("timeout" if watch.rang else "protocol") from None
    except OSError:
        raise ProviderUnreachable("timeout" if watch.rang else "connection_refused") from None
    if watch.rang:
        raise ProviderUnreachable("timeout")
    if len(text) > MAX_BYTES:
        raise ProviderUnreachable("too_large")
    return Answer(answer.status, told, text)


class _Watch:
    """The clock over one call; `rang` says that it ended the call."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.rang = False

    @property
    def left(self) -> float:
        return max(0.01, self._end - time.monotonic())

    def over(self, stream: socket.socket) -> _Alarm:
        """Closes the connection when time is up, for the length of a block."""
        return _Alarm(self, stream)

    def ring(self, stream: socket.socket) -> None:
        self.rang = True
        with suppress(OSError):
            # Not the method of a TLS socket, which would take its state from under the thread that reads.
            socket.socket.shutdown(stream, socket.SHUT_RDWR)


class _Alarm:
    def __init__(self, watch: _Watch, stream: socket.socket) -> None:
        self._timer = threading.Timer(watch.left, watch.ring, [stream])
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()


def _connected(host: str, port: int, watch: _Watch) -> socket.socket:
    """The first of the host's addresses that answers, all of them within the time of the call."""
    failed: OSError = OSError()
    for family, kind, protocol, _name, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        stream = socket.socket(family, kind, protocol)
        stream.settimeout(watch.left)
        try:
            stream.connect(address)
        except OSError as error:
            stream.close()
            failed = error
        else:
            return stream
    raise failed


def _secured(stream: socket.socket, host: str, watch: _Watch) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    stream.settimeout(watch.left)
    return context.wrap_socket(stream, server_hostname=host, do_handshake_on_connect=False)
