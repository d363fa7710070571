"""An OpenID provider that does what a test tells it, wrong things above all: a real server on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

_RSA = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
_EC = ec.generate_private_key(ec.SECP256R1())
CLIENT = "qinglong"
SECRET = "s3cret/of+the client%"

Claims = dict[str, Any]


class Hostile:
    """`person` and `claims` are who signs in; `alter` and `sign` falsify ID tokens, `answers` whole answers."""

    def __init__(self) -> None:
        self.person = "248289761001"
        self.claims: Claims = {"preferred_username": "ann", "email": "ann@example.org"}
        self.userinfo: Claims | None = None
        self.alter: Callable[[Claims], object] = lambda claims: None
        self.sign: Callable[[Claims], str] = self.signed
        self.document: Claims = {}
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.keys = {"first": _RSA[0]}
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.secrets: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                provider._answer(self)

            do_POST = do_GET

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # callers hang up on purpose
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"

    def signed(self, claims: Claims, kid: str | None = "first", **header: Any) -> str:
        """A token with the first key, or with the one that is named."""
        key = self.keys[kid or "first"]
        headers = {**({"kid": kid} if kid else {}), **header}
        return jwt.encode(claims, key, algorithm="ES256" if key is _EC else "RS256", headers=headers)

    def rotate(self) -> None:
        """New keys; the old one is gone."""
        self.keys = {"second": _RSA[1]}
        self.sign = lambda claims: self.signed(claims, "second")

    def use_ec(self) -> None:
        self.keys = {"first": _EC}

    def code(self, address: str, **claims: Any) -> dict[str, str]:
        """What the authorization endpoint would send back for `address`: code and state."""
        asked = dict(parse_qsl(urlsplit(address).query))
        assert address.startswith(f"{self.issuer}/authorize?"), address
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def id_token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims: Claims = {
            "iss": self.issuer, "aud": asked["client_id"], "sub": self.person, "nonce": asked.get("nonce"),
            "iat": now, "exp": now + 300, **self.claims,
        }  # fmt: skip
        self.alter(claims)
        return self.sign(claims)

    def logout_token(self, **claims: Any) -> Claims:
        now = int(time.time())
        return {
            "iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 120, "jti": secrets.token_hex(8),
            "events": {"http://schemas.openid.net/event/backchannel-logout": {}}, **claims,
        }  # fmt: skip

    def _answer(self, call: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(call.path)
        self.asked.append(parts.path)
        if (own := self.answers.get(parts.path)) is not None:
            own(call)
            return
        if parts.path == "/.well-known/openid-configuration":
            return reply(call, self._document())
        if parts.path == "/keys":
            return reply(call, {"keys": [_public(kid, key) for kid, key in self.keys.items()]})
        if parts.path == "/token":
            return self._token(call)
        if parts.path == "/userinfo":
            return reply(call, {"sub": self.person, **(self.userinfo or {})})
        if parts.path == "/authorize":
            asked = parse_qs(parts.query)
            sent = self.code(self.issuer + call.path)
            call.send_response(302)
            call.send_header("Location", f"{asked['redirect_uri'][0]}?{urlencode(sent)}")
            call.send_header("Content-Length", "0")
            call.end_headers()
            return None
        return reply(call, {"error": "not_found"}, 404)

    def _document(self) -> Claims:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        found: Claims = {
            "issuer": self.issuer,
            **{name: f"{self.issuer}/{path}" for name, path in names.items()},
        }
        if self.userinfo is not None:
            found["userinfo_endpoint"] = f"{self.issuer}/userinfo"
        return {**found, **self.document}

    def _token(self, call: BaseHTTPRequestHandler) -> None:
        body = call.rfile.read(int(call.headers["Content-Length"]))
        form = dict(parse_qsl(body.decode()))
        self.forms.append(form)
        scheme, _, pair = call.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            self.secrets.append(
                dict(parse_qsl("s=" + base64.b64decode(pair).decode().partition(":")[2]))["s"]
            )
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if asked is None or challenge.rstrip(b"=").decode() != asked["code_challenge"]:
            return reply(call, {"error": "invalid_grant", "error_description": "gone"}, 400)
        if form["redirect_uri"] != asked["redirect_uri"]:
            return reply(call, {"error": "invalid_grant"}, 400)
        return reply(
            call,
            {"access_token": "an-access-token", "token_type": "Bearer", "id_token": self.id_token(asked)},
        )


def reply(call: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    call.send_response(status)
    call.send_header("Content-Type", "application/json")
    call.send_header("Content-Length", str(len(text)))
    call.end_headers()
    call.wfile.write(text)


def _public(kid: str, key: Any) -> Claims:
    kind = ECAlgorithm if key is _EC else RSAAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


def pem(key: Any) -> bytes:
    """A public key as text, which a careless client takes for a shared secret."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@contextmanager
def running() -> Iterator[Hostile]:
    provider = Hostile()
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
