"""An authenticator made of a key pair, honest or not, for tests of passkeys."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

PRESENT, VERIFIED, ELIGIBLE, BACKED_UP, ATTESTED = 0x01, 0x04, 0x08, 0x10, 0x40


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Authenticator:
    """One passkey; what it says can be bent by hand."""

    origin: str = "http://testserver"
    host: str = "testserver"
    flags: int = PRESENT | VERIFIED
    count: int = 0
    key: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    id: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def made(self, options: dict[str, Any]) -> str:
        """The answer to a question for a new passkey."""
        point = self.key.public_key().public_numbers()
        public = cbor2.dumps(
            {1: 2, 3: -7, -1: 1, -2: point.x.to_bytes(32, "big"), -3: point.y.to_bytes(32, "big")}
        )
        data = self._data(ATTESTED) + bytes(16) + len(self.id).to_bytes(2, "big") + self.id + public
        told = self._client("webauthn.create", options)
        attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
        return self._answer({"clientDataJSON": text(told), "attestationObject": text(attestation)})

    def used(self, options: dict[str, Any], user_handle: bytes = b"") -> str:
        """The answer to a question for an existing one."""
        self.count += 1
        data, told = self._data(0), self._client("webauthn.get", options)
        signature = self.key.sign(data + hashlib.sha256(told).digest(), ec.ECDSA(hashes.SHA256()))
        return self._answer(
            {
                "clientDataJSON": text(told),
                "authenticatorData": text(data),
                "signature": text(signature),
                "userHandle": text(user_handle),
            }
        )

    def _data(self, flags: int) -> bytes:
        rp = hashlib.sha256(self.host.encode()).digest()
        return rp + bytes([self.flags | flags]) + self.count.to_bytes(4, "big")

    def _client(self, kind: str, options: dict[str, Any]) -> bytes:
        told = {"type": kind, "challenge": options["challenge"], "origin": self.origin, "crossOrigin": False}
        return json.dumps(told).encode()

    def _answer(self, response: dict[str, str]) -> str:
        return json.dumps(
            {
                "id": text(self.id),
                "rawId": text(self.id),
                "type": "public-key",
                "clientExtensionResults": {},
                "response": response,
            }
        )
