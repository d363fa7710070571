"""Providers behind TLS: whose certificate counts, and what happens to those who never finish a handshake."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from apps.access.oidc import http
from apps.access.oidc.errors import ProviderUnreachable
from tests.access.provider import reply
from tests.e2e.nginx import HOST, _certify

pytestmark = pytest.mark.one_engine


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        reply(self, {"host": self.headers["Host"], "path": self.path})

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Port and certificate of a server on this machine."""
    certificate = tmp_path_factory.mktemp("tls") / "certificate.pem"
    _certify(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port, certificate
    server.shutdown()
    server.server_close()


def reason(url: str) -> str:
    with pytest.raises(ProviderUnreachable) as failed:
        http.call("GET", url)
    return failed.value.reason


def test_certificates_are_checked_with_what_the_system_trusts(
    secured: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, certificate = secured
    assert reason(f"https://{HOST}:{port}/") == "tls"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    answer = http.call("GET", f"https://{HOST}:{port}/a?b=c")
    assert (answer.status, answer.json()) == (200, {"host": f"{HOST}:{port}", "path": "/a?b=c"})
    assert reason(f"https://localhost:{port}/") == "tls", "a certificate for another name"


def test_a_handshake_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.3)
    with socket.create_server((HOST, 0)) as silent:
        assert reason(f"https://{HOST}:{silent.getsockname()[1]}/") == "timeout"
