"""Sealed payloads: values that only the right key, purpose, project and holder open (upper-floors.md §2).

Text form `v1.<key id>.<iv>.<tag>.<data>`: AES-256-GCM under a subkey that HKDF-SHA256 derives from a master
key for each purpose; authenticated beside the data are project, holder id and payload id, joined by NUL.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.db.models import Count, Q

from apps.core import canonical, clock, ids
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput
from apps.vault import keyring
from apps.vault.errors import PayloadExpired, PayloadTooLarge, PayloadUnreadable
from apps.vault.models import SealedPayload

MAX_CLEAR_BYTES = 65_536
RESEAL_BATCH = 200
_LABEL = b"qinglong.sealing.v1\0"
_PURPOSE = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_TEXT = re.compile(r"v1\.(sha256:[0-9a-f]{16})\.([A-Za-z0-9_-]{16})\.([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]+)")

Holder = tuple[str, str]
_purposes: set[str] = set()


def register_purpose(name: str) -> str:
    """Makes a purpose known, so that re-sealing reaches its payloads; returns the name."""
    if _PURPOSE.fullmatch(name) is None:
        raise ValueError("a purpose is a short lower-case word")
    _purposes.add(name)
    return name


def purposes() -> list[str]:
    """All registered purposes, by name."""
    return sorted(_purposes)


@write_transaction
def seal(
    purpose: str,
    *,
    project_id: str,
    holder: Holder,
    value: Any,
    schema_id: str,
    payload_id: UUID | None = None,
    expires_at: datetime | None = None,
) -> SealedPayload:
    """Stores a JSON value of at most 65,536 canonical bytes under the active key.

    `holder` is the (type, id) of the row it belongs to. Raises PayloadTooLarge, InvalidInput for what is no
    JSON, and SecretUnavailable.
    """
    if purpose not in _purposes:
        raise ValueError("the purpose is not registered")
    clear = _clear(value)
    payload_id = payload_id or ids.uuid7()
    aad = _aad(project_id, holder[1], payload_id)
    with keyring.opened() as keys:
        master = keys.active_key_id
        subkey = _derive(keys.active(), purpose)
    row = SealedPayload.objects.create(
        id=payload_id,
        purpose=purpose,
        project_id=project_id,
        holder_type=holder[0],
        holder_id=holder[1],
        schema_id=schema_id,
        key_id=subkey.id,
        hash=subkey.hash(clear),
        size=len(clear),
        ciphertext=_encrypt(subkey, clear, aad),
        created_at=clock.now(),
        expires_at=expires_at,
    )
    keyring.require(master)
    return row


def find(payload_id: UUID) -> SealedPayload | None:
    """The row, still sealed, or None."""
    return SealedPayload.objects.filter(pk=payload_id).first()


def unseal(payload_id: UUID, purpose: str, *, project_id: str, holder: Holder) -> Any:
    """The value of a payload; raises PayloadUnreadable, PayloadExpired or SecretUnavailable."""
    row = find(payload_id)
    if row is None:
        raise PayloadUnreadable
    return unseal_row(row, purpose, project_id=project_id, holder=holder)


def unseal_row(row: SealedPayload, purpose: str, *, project_id: str, holder: Holder) -> Any:
    """As `unseal`, for a row the caller has read: many rows then cost one query."""
    if (row.purpose, row.project_id, row.holder_type, row.holder_id) != (purpose, project_id, *holder):
        raise PayloadUnreadable
    if row.expires_at is not None and row.expires_at <= clock.now():
        raise PayloadExpired
    with keyring.opened() as keys:
        clear = _open(row, keys)
    return canonical.loads(clear)


@write_transaction
def reseal(after: UUID | None = None, *, limit: int = RESEAL_BATCH) -> tuple[int, int, UUID | None]:
    """Moves one batch of payloads of every registered purpose to the active key.

    Returns how many were moved, how many cannot be opened and stay, and where to go on (None = through). A row that
    changed meanwhile is left to its changer. Doing it again changes nothing.
    """
    with keyring.opened() as keys:
        current = {purpose: _derive(keys.active(), purpose) for purpose in purposes()}
        behind = Q()
        for purpose, subkey in current.items():
            behind |= Q(purpose=purpose) & ~Q(key_id=subkey.id)
        rows = SealedPayload.objects.filter(behind).order_by("id")
        found = list((rows.filter(id__gt=after) if after else rows)[:limit]) if current else []
        moved = stuck = 0
        for row in found:
            try:
                clear = _open(row, keys)
            except PayloadUnreadable:
                stuck += 1
                continue
            subkey = current[row.purpose]
            text = _encrypt(subkey, clear, _aad(row.project_id, row.holder_id, row.pk))
            moved += SealedPayload.objects.filter(pk=row.pk, ciphertext=row.ciphertext).update(
                ciphertext=text, key_id=subkey.id, hash=subkey.hash(clear)
            )
        if moved:
            keyring.require(keys.active_key_id)
    return moved, stuck, found[-1].pk if len(found) == limit else None


def keys_in_use() -> dict[str, int]:
    """For each key of the keyring, how many stored payloads of any purpose still need it."""
    counted = SealedPayload.objects.order_by().values_list("purpose", "key_id").annotate(Count("pk"))
    stored = {(purpose, key_id): count for purpose, key_id, count in counted}
    names = {purpose for purpose, _key_id in stored}
    with keyring.opened() as keys:
        return {
            key.id: sum(stored.get((purpose, _derive(key, purpose).id), 0) for purpose in names)
            for key in keys.keys.values()
        }


@dataclass(frozen=True)
class _Subkey:
    id: str
    cipher: AESGCM = field(repr=False)
    mac: bytes = field(repr=False)

    def hash(self, clear: bytes) -> str:
        # Not a plain digest: inputs are often a word or a number, which a digest in the open would give away.
        return hmac.new(self.mac, clear, hashlib.sha256).hexdigest()


def _derive(master: keyring.MasterKey, purpose: str) -> _Subkey:
    """The purpose's own keys; the first half encrypts, the second authenticates the stored hash."""
    material = HKDF(SHA256(), 64, None, _LABEL + purpose.encode()).derive(master.material)
    encryption = material[:32]
    key_id = "sha256:" + hashlib.sha256(encryption).hexdigest()[:16]
    return _Subkey(key_id, AESGCM(encryption), material[32:])


def _clear(value: Any) -> bytes:
    try:
        clear = canonical.dumps(value).encode()
    except canonical.NotCanonical as error:
        raise InvalidInput from error
    if len(clear) > MAX_CLEAR_BYTES:
        raise PayloadTooLarge
    return clear


def _aad(project_id: str, holder_id: str, payload_id: UUID) -> bytes:
    parts = (project_id, holder_id, str(payload_id))
    if any("\0" in part for part in parts):
        raise InvalidInput
    return "\0".join(parts).encode()


def _encrypt(subkey: _Subkey, clear: bytes, aad: bytes) -> str:
    iv = os.urandom(12)
    sealed = subkey.cipher.encrypt(iv, clear, aad)
    return ".".join(("v1", subkey.id, _text(iv), _text(sealed[-16:]), _text(sealed[:-16])))


def _open(row: SealedPayload, keys: keyring.Keyring) -> bytes:
    parts = _TEXT.fullmatch(row.ciphertext)
    if parts is None or parts[1] != row.key_id:
        raise PayloadUnreadable
    subkey = _matching(keys, row.purpose, row.key_id)
    iv, tag, data = (_bytes(part) for part in parts.groups()[1:])
    try:
        clear = subkey.cipher.decrypt(iv, data + tag, _aad(row.project_id, row.holder_id, row.pk))
    except InvalidTag:
        raise PayloadUnreadable from None
    if len(clear) != row.size or not hmac.compare_digest(subkey.hash(clear), row.hash):
        raise PayloadUnreadable
    return clear


def _matching(keys: keyring.Keyring, purpose: str, key_id: str) -> _Subkey:
    for master in _active_first(keys):
        subkey = _derive(master, purpose)
        if hmac.compare_digest(subkey.id, key_id):
            return subkey
    raise PayloadUnreadable


def _active_first(keys: keyring.Keyring) -> Iterable[keyring.MasterKey]:
    yield keys.active()
    yield from (key for key in keys.keys.values() if key.id != keys.active_key_id)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(text: str) -> bytes:
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise PayloadUnreadable from None
    if _text(data) != text:
        raise PayloadUnreadable
    return data
