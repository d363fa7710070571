"""Secret envelopes: versions of secrets, sealed, and the store of them (secrets-and-artifacts.md §3.1, §3.4, §3.5)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.db import IntegrityError
from django.db.models import Exists, Max, OuterRef, Q, Subquery, TextField, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from apps.core import canonical, clock, db, ids
from apps.core.errors import InvalidInput
from apps.core.fields import MAX_VERSION
from apps.vault.errors import SecretUnavailable, SecretVersionConflict
from apps.vault.keyring import KEY_BYTES, MasterKey
from apps.vault.models import Secret, SecretEnvelope
from apps.vault.references import Reference, check_name, is_version, parse

ALGORITHM = "aes-256-gcm"
NONCE_BYTES = 12
TAG_BYTES = 16
MAX_PLAINTEXT = 65_536
MAX_REFERENCES = 64
MAX_MUTATION = 64
KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """One version of a secret; all but `created_at` is bound to the value. Raises InvalidInput for a broken rule."""

    project_id: str = field(repr=False)
    name: str = field(repr=False)
    version: int
    mutation_id: str = field(repr=False)
    key_id: str = field(repr=False)
    algorithm: str
    nonce: bytes = field(repr=False)
    ciphertext: bytes = field(repr=False)
    auth_tag: bytes = field(repr=False)
    created_at: datetime

    def __post_init__(self) -> None:
        check_name(self.project_id, self.name)
        check_mutation(self.mutation_id)
        sound = (
            is_version(self.version)
            and KEY_ID.fullmatch(self.key_id) is not None
            and self.algorithm == ALGORITHM
            and len(self.nonce) == NONCE_BYTES
            and len(self.ciphertext) <= MAX_PLAINTEXT
            and len(self.auth_tag) == TAG_BYTES
            and self.created_at >= clock.from_ms(0)
        )
        if not sound:
            raise InvalidInput


@dataclass(frozen=True)
class Resolved:
    """An envelope with what its secret is at the moment: disabled or not, and where the value lies."""

    envelope: Envelope
    disabled: bool
    provider: str


def check_mutation(mutation_id: object) -> None:
    """Raises InvalidInput unless it is 1–64 characters without control characters."""
    if not ids.is_text_id(mutation_id, MAX_MUTATION):
        raise InvalidInput.field("mutation_id", _("1 to 64 characters."))


def encode(value: object) -> bytearray:
    """The bytes to seal, for the caller to wipe. Raises InvalidInput for NUL, lone surrogates and > 65,536 bytes."""
    if not isinstance(value, str):
        raise InvalidInput.field("value", _("Text is expected."))
    if "\0" in value:
        raise InvalidInput.field("value", _("The text holds a NUL character; no process can be given one."))
    if not ids.is_utf8(value):
        raise InvalidInput.field("value", _("The text is not valid Unicode."))
    plaintext = bytearray(value.encode())
    if len(plaintext) > MAX_PLAINTEXT:
        wipe(plaintext)
        raise InvalidInput.field("value", _("At most 65,536 bytes."))
    return plaintext


def seal(
    plaintext: bytearray,
    key: MasterKey,
    *,
    project_id: str,
    name: str,
    version: int,
    mutation_id: str,
    created_at: datetime,
    nonce: bytes | None = None,
) -> Envelope:
    """The envelope of a value under a key; only tests give a `nonce`. Raises SecretUnavailable for a wrong length."""
    nonce = os.urandom(NONCE_BYTES) if nonce is None else nonce
    if len(key.material) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise SecretUnavailable
    aad = _aad(project_id, name, version, mutation_id, key.id, ALGORITHM)
    sealed = AESGCM(key.material).encrypt(nonce, plaintext, aad)
    return Envelope(
        project_id=project_id,
        name=name,
        version=version,
        mutation_id=mutation_id,
        key_id=key.id,
        algorithm=ALGORITHM,
        nonce=nonce,
        ciphertext=sealed[:-TAG_BYTES],
        auth_tag=sealed[-TAG_BYTES:],
        created_at=created_at,
    )


def unseal(envelope: Envelope, key: MasterKey) -> bytearray:
    """The value; the caller wipes it. Raises SecretUnavailable, whatever does not fit."""
    if len(key.material) != KEY_BYTES or key.id != envelope.key_id:
        raise SecretUnavailable
    aad = _aad(
        envelope.project_id, envelope.name, envelope.version, envelope.mutation_id, envelope.key_id,
        envelope.algorithm,
    )  # fmt: skip
    try:
        opened = AESGCM(key.material).decrypt(envelope.nonce, envelope.ciphertext + envelope.auth_tag, aad)
    except InvalidTag:
        raise SecretUnavailable from None
    return bytearray(opened)


def decode(plaintext: bytearray) -> str:
    """The text of a value, unchanged; raises SecretUnavailable for bytes that are none."""
    try:
        return plaintext.decode("utf-8")
    except UnicodeDecodeError:
        raise SecretUnavailable from None


def wipe(buffer: bytearray) -> None:
    """Overwrites it."""
    buffer[:] = bytes(len(buffer))


def append(expected_version: int, envelope: Envelope) -> tuple[Literal["inserted", "existing"], Envelope]:
    """Stores one version behind `expected_version` (0 = the first), or answers what its mutation id stored before.

    What is answered as `existing` is for the caller to judge. Raises SecretVersionConflict, before any query where the
    envelope's own version is not the next one, and InvalidInput.
    """
    if type(expected_version) is not int or not 0 <= expected_version < MAX_VERSION:
        raise InvalidInput.field("expected_version", _("Not a version."))
    if envelope.version != expected_version + 1:
        raise SecretVersionConflict
    return _append(expected_version, envelope)


@db.write_transaction
def _append(expected_version: int, envelope: Envelope) -> tuple[Literal["inserted", "existing"], Envelope]:
    for attempt in range(db.TRIES):
        stored = find_by_mutation(envelope.project_id, envelope.name, envelope.mutation_id)
        if stored is not None:
            return "existing", stored
        if current_version(envelope.project_id, envelope.name) != expected_version:
            raise SecretVersionConflict
        try:
            with db.savepoint():
                _row(envelope).save(force_insert=True)
        except IntegrityError as error:
            if not db.is_unique_violation(error) or attempt == db.TRIES - 1:
                raise
            time.sleep(0.001 * 2**attempt)
        else:
            return "inserted", envelope
    raise AssertionError("unreachable")


def find_by_mutation(project_id: str, name: str, mutation_id: str) -> Envelope | None:
    """What a mutation stored; raises InvalidInput before any query, and SecretUnavailable for a broken row."""
    check_name(project_id, name)
    check_mutation(mutation_id)
    row = SecretEnvelope.objects.filter(
        project_id=project_id, secret_name=name, mutation_id=mutation_id
    ).first()
    return None if row is None else read(row)


def current_version(project_id: str, name: str) -> int:
    """The highest version, 0 where there is none."""
    rows = SecretEnvelope.objects.filter(project_id=project_id, secret_name=name).order_by("-version")
    return rows.values_list("version", flat=True).first() or 0


def resolve_many(references: Sequence[str]) -> list[Resolved | None]:
    """For each reference the envelope it means now, or None where there is none; at most 64, in one statement.

    Raises InvalidInput before any query, SecretUnavailable for rows that break a rule.
    """
    if len(references) > MAX_REFERENCES:
        raise InvalidInput(_("At most 64 secrets."))
    wanted = [parse(text) for text in references]
    if not wanted:
        return []
    exact, current = {}, {}
    for row in _resolving(wanted):
        found = Resolved(read(row), row.disabled, row.provider)
        key = (row.project_id, row.secret_name)
        exact[(*key, row.version)] = found
        if row.version == row.newest:
            current[key] = found
    return [
        current.get((one.project_id, one.name))
        if one.version is None
        else exact.get((one.project_id, one.name, one.version))
        for one in wanted
    ]


def _resolving(wanted: Sequence[Reference]) -> list[Any]:
    """One statement, so that all that is current is current at one moment."""
    same = SecretEnvelope.objects.filter(
        project_id=OuterRef("project_id"), secret_name=OuterRef("secret_name")
    ).order_by()
    newest = same.values("project_id", "secret_name").annotate(newest=Max("version")).values("newest")
    head = Secret.objects.filter(project_id=OuterRef("project_id"), name=OuterRef("secret_name"))
    condition = Q()
    for one in dict.fromkeys(wanted):
        which = Q(version=Subquery(newest)) if one.version is None else Q(version=one.version)
        condition |= Q(project_id=one.project_id, secret_name=one.name) & which
    rows = SecretEnvelope.objects.filter(condition).annotate(
        newest=Subquery(newest),
        disabled=Exists(head.filter(disabled_at__isnull=False)),
        provider=Coalesce(Subquery(head.values("provider")[:1]), Value(""), output_field=TextField()),
    )
    return list(rows)


def read(row: SecretEnvelope) -> Envelope:
    """A row as a value; raises SecretUnavailable where it breaks a rule."""
    try:
        return Envelope(
            project_id=row.project_id,
            name=row.secret_name,
            version=row.version,
            mutation_id=row.mutation_id,
            key_id=row.key_id,
            algorithm=row.algorithm,
            nonce=bytes(row.nonce),
            ciphertext=bytes(row.ciphertext),
            auth_tag=bytes(row.auth_tag),
            created_at=row.created_at,
        )
    except (InvalidInput, TypeError):
        raise SecretUnavailable from None


def _row(envelope: Envelope) -> SecretEnvelope:
    return SecretEnvelope(
        project_id=envelope.project_id,
        secret_name=envelope.name,
        version=envelope.version,
        mutation_id=envelope.mutation_id,
        key_id=envelope.key_id,
        algorithm=envelope.algorithm,
        nonce=envelope.nonce,
        ciphertext=envelope.ciphertext,
        auth_tag=envelope.auth_tag,
        created_at=envelope.created_at,
    )


def _aad(project_id: str, name: str, version: int, mutation_id: str, key_id: str, algorithm: str) -> bytes:
    return canonical.ordered(
        {
            "project_id": project_id,
            "name": name,
            "version": version,
            "mutation_id": mutation_id,
            "key_id": key_id,
            "algorithm": algorithm,
        }
    ).encode()
