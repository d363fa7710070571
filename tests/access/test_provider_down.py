"""Providers that are slow, dead, huge or point elsewhere: a page in time, and threads for everybody else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from apps.access.models import ProviderSignIn, User
from apps.access.oidc import http, metadata
from tests.access.provider import Hostile, reply
from tests.access.single_sign_on import Browser, code_of, path_of, provider, switched_on

pytestmark = [pytest.mark.django_db, pytest.mark.one_engine]
DOCUMENT = "/.well-known/openid-configuration"
# Who did not give up would wait three times as long; a busy machine does not make a second of it.
PATIENCE_S = 10


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second instead of five."""
    monkeypatch.setattr(http, "TIMEOUT_S", 0.5)


def silent(call: Any) -> None:
    time.sleep(3 * PATIENCE_S)


def dripping(call: Any) -> None:
    """A byte now and then: each comes in time, all of them never do."""
    call.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    try:
        for _ in range(60 * PATIENCE_S):
            call.wfile.write(b"y")
            call.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass


def dripping_body(call: Any) -> None:
    call.send_response(200)
    call.send_header("Content-Length", "1000")
    call.end_headers()
    try:
        for _ in range(60 * PATIENCE_S):
            call.wfile.write(b" ")
            call.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass


def huge(call: Any) -> None:
    call.send_response(200)
    call.end_headers()
    try:
        for _ in range(100_000):
            call.wfile.write(b"x" * 65_536)
    except OSError:
        pass
    call.close_connection = True


def elsewhere(call: Any) -> None:
    call.send_response(302)
    call.send_header("Location", f"http://127.0.0.1:{call.server.server_port}/inside")
    call.send_header("Content-Length", "0")
    call.end_headers()


def hanging_up(call: Any) -> None:
    call.connection.shutdown(socket.SHUT_RDWR)
    call.close_connection = True


def no_http(call: Any) -> None:
    call.wfile.write(b"SSH-2.0-nothing\r\n\r\n")
    call.close_connection = True


def answering(body: Any, status: int = 200) -> Callable[[Any], None]:
    return lambda call: reply(call, body, status)


BROKEN = [
    (silent, "timeout"),
    (dripping, "timeout"),
    (dripping_body, "timeout"),
    (huge, "too_large"),
    (hanging_up, "protocol"),
    (no_http, "protocol"),
    (answering(b"[" * 100_000), "not_json"),
    (answering([1]), "not_json"),
]


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        *((DOCUMENT, answer, reason) for answer, reason in BROKEN),
        (DOCUMENT, elsewhere, "discovery_status_302"),
        (DOCUMENT, answering({}, 500), "discovery_status_500"),
        (DOCUMENT, answering({}), "issuer_differs"),
        ("/keys", silent, "timeout"),
        ("/keys", elsewhere, "keys_status_302"),
        ("/keys", answering({"keys": {}}), "keys_invalid"),
        ("/keys", answering({"keys": [1] * 200}), "keys_invalid"),
        ("/token", dripping, "timeout"),
        ("/token", huge, "too_large"),
        ("/token", elsewhere, "token_status_302"),
        ("/token", answering(b"<html>", 200), "not_json"),
        ("/token", answering({}, 503), "token_status_503"),
        ("/userinfo", elsewhere, "userinfo_status_302"),
        ("/userinfo", answering({}, 401), "userinfo_status_401"),
    ],
)
def test_it_is_a_page_and_nobody_is_sent_on(
    there: Hostile, hasty: None, path: str, answer: Callable[[Any], None], reason: str
) -> None:
    there.answers[path] = answer
    if path == "/userinfo":
        there.claims, there.userinfo = {}, {}
    browser = Browser()
    began = time.monotonic()
    if path == DOCUMENT:
        page = browser.get("/oidc/login/", {"next": "/panel/tokens/"})
        with pytest.raises(metadata.ProviderUnreachable) as failed:
            metadata.discover(provider(there))
        assert failed.value.reason == reason
    else:
        page = browser.sign_in(there)
        assert ProviderSignIn.objects.get().reason == reason
    assert time.monotonic() - began < PATIENCE_S
    assert (page.status_code, code_of(page)) == (503, "oidc_provider_unreachable")
    assert "/inside" not in there.asked and not User.objects.exists() and browser.me is None


@pytest.mark.parametrize("body", [{"error": "invalid_client"}, {"error": "<b>"}, b"no json", []])
def test_a_refused_code_is_a_page(there: Hostile, body: Any) -> None:
    there.answers["/token"] = answering(body, 400)
    assert code_of(Browser().sign_in(there)) == "oidc_refused"
    reason = ProviderSignIn.objects.get().reason
    assert reason == (
        "code_refused_invalid_client"
        if body == {"error": "invalid_client"}
        else "code_refused_without_a_word"
    )


@pytest.mark.parametrize(
    ("issuer", "endpoint", "fine"),
    [
        ("https://id.example.org", "https://login.example.org/token?tenant=1", True),
        ("https://id.example.org", "http://id.example.org/token", False),
        ("https://id.example.org", "https://127.0.0.1/token", False),
        ("https://id.example.org", "https://localhost:5700/token", False),
        ("https://id.example.org", "https://[::1]/token", False),
        ("https://id.example.org", "file:///etc/passwd", False),
        ("https://id.example.org", "gopher://id.example.org/", False),
        ("https://id.example.org", "https://ann:secret@id.example.org/", False),
        ("https://id.example.org", "https://id.example.org/#x", False),
        ("https://id.example.org", "https://id.example.org:99999/", False),
        ("https://id.example.org", "https://id.example.org/a\r\nHost: b", False),
        ("https://id.example.org", "//id.example.org/", False),
        ("https://id.example.org", "https:///token", False),
        ("https://id.example.org", "x" * 3000, False),
        ("https://id.example.org", 7, False),
        ("http://localhost:9000", "http://127.0.0.1:9000/token", True),
    ],
)
def test_endpoints_stay_outside_and_encrypted(
    there: Hostile, monkeypatch: pytest.MonkeyPatch, issuer: str, endpoint: Any, fine: bool
) -> None:
    document = dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), endpoint)
    body = http.Answer(200, {}, __import__("json").dumps({"issuer": issuer, **document}).encode())
    monkeypatch.setattr(http, "call", lambda *_arguments, **_options: body)
    configured = provider(there, issuer=issuer)
    if fine:
        assert metadata.discover(configured).token_endpoint == endpoint
        return
    with pytest.raises(metadata.ProviderUnreachable) as failed:
        metadata.discover(configured)
    assert failed.value.reason == "authorization_endpoint_invalid"


def test_nobody_queues_for_a_dead_provider(there: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(metadata, "monotonic", lambda: now[0])
    there.answers[DOCUMENT] = answering({}, 500)
    for _ in range(5):
        assert Browser().get("/oidc/login/").status_code == 503
    assert there.asked.count(DOCUMENT) == 1
    now[0] += metadata.FAILED_S
    there.answers.clear()
    assert path_of(Browser().sign_in(there)) == "/panel/"


def test_what_was_learnt_serves_while_the_document_cannot_be_renewed(
    there: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(metadata, "monotonic", lambda: now[0])
    Browser().sign_in(there)
    there.answers[DOCUMENT] = answering({}, 500)
    now[0] += metadata.KEPT_S
    assert path_of(Browser().sign_in(there)) == "/panel/"
    now[0] += metadata.STALE_S
    assert Browser().get("/oidc/login/").status_code == 503


def test_a_hanging_provider_holds_five_threads_at_most(there: Hostile, hasty: None) -> None:
    there.answers["/slow"] = silent
    reasons: list[str] = []

    def ask() -> None:
        try:
            http.call("GET", f"{there.issuer}/slow")
        except metadata.ProviderUnreachable as error:
            reasons.append(error.reason)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < PATIENCE_S
    assert reasons.count("busy") >= 3, "neither asks nor waits"
    assert set(reasons) == {"timeout", "busy"} and there.asked.count("/slow") <= 5


def test_names_ports_and_certificates_that_do_not_answer(there: Hostile, hasty: None) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for url, reasons in (
            (f"http://127.0.0.1:{port}/", {"connection_refused"}),
            ("http://nothing.invalid/", {"name_unknown"}),
            (there.issuer.replace("http", "https"), {"tls", "timeout"}),
        ):
            with pytest.raises(metadata.ProviderUnreachable) as failed:
                http.call("GET", url)
            assert failed.value.reason in reasons, url


def test_signing_out_needs_no_provider(there: Hostile, settings: Any) -> None:
    there.document = {"end_session_endpoint": f"{there.issuer}/end"}
    browser = Browser()
    browser.sign_in(there)
    metadata.forget()
    there.answers[DOCUMENT] = answering({}, 500)
    answer = browser.post("/panel/logout/")
    assert answer.headers["Location"] == "/panel/login/" and browser.me is None
    browser = Browser()
    there.answers.clear()
    metadata.forget()
    browser.sign_in(there)
    settings.SINGLE_SIGN_ON = switched_on()
    assert browser.post("/panel/logout/").headers["Location"] == "/panel/login/"
