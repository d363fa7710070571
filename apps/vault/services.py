"""Setting secrets, and disabling and enabling them; values go in and never come out (secrets-and-artifacts.md §3.6)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import clock, db
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput, NotFound
from apps.projects import policy
from apps.projects.policy import MUTATION_ID, Grant
from apps.vault import envelopes, keyring, providers, references
from apps.vault.envelopes import Envelope
from apps.vault.errors import ProviderFixed, SecretMutationConflict, SecretUnavailable
from apps.vault.models import Secret, SecretSwitch
from apps.vault.references import Reference

PERMISSION = "secret.manage"


@dataclass(frozen=True)
class Put:
    """What setting a secret came to; `secret_ref` is pinned to the version. A repeated call gets the first answer."""

    status: Literal["inserted", "existing"]
    version: int
    secret_ref: str
    created_at: datetime


@dataclass(frozen=True)
class Switched:
    """A disabling or enabling; `replayed` when the same call had done it before."""

    enabled: bool
    created_at: datetime
    replayed: bool


def put(grant: Grant, name: str, value: object, *, mutation_id: str, expected_version: int) -> Put:
    """Stores a value as the version behind `expected_version` (0 = a new secret); needs `secret.manage`.

    The value is text of at most 65,536 bytes without NUL. Raises InvalidInput, SecretVersionConflict,
    SecretMutationConflict, ProviderFixed, SecretUnavailable and what `policy.confirm` raises.
    """
    _check(grant, name, mutation_id, expected_version)
    return _store(grant, name, "", envelopes.encode(value), mutation_id, expected_version)


def put_external(
    grant: Grant, name: str, provider: str, key: object, *, mutation_id: str, expected_version: int
) -> Put:
    """As `put`, for a secret whose value stays with a provider: only where it lies there is stored, sealed as well.

    Raises ProviderOff too.
    """
    _check(grant, name, mutation_id, expected_version)
    locator = providers.locator(provider, key)
    return _store(grant, name, provider, envelopes.encode(locator), mutation_id, expected_version)


def disable(grant: Grant, name: str, *, mutation_id: str) -> Switched:
    """Lets nobody use a secret until it is enabled again: starts that need it are refused, runs fail.

    Runs that have started keep what they were given. Raises InvalidInput, NotFound, SecretMutationConflict and what
    `policy.confirm` raises.
    """
    return _switch(grant, name, mutation_id, enabled=False)


def enable(grant: Grant, name: str, *, mutation_id: str) -> Switched:
    """The opposite of `disable`; raises the same."""
    return _switch(grant, name, mutation_id, enabled=True)


def check_name(name: object) -> str:
    """The name of a secret as people may choose it; raises InvalidInput."""
    if not isinstance(name, str) or references.NAME.fullmatch(name) is None:
        raise InvalidInput.field(
            "name", _("1 to 128 letters, digits, . _ and -, the first one a letter or digit.")
        )
    return name


def _check(grant: Grant, name: str, mutation_id: object, expected_version: object) -> None:
    check_name(name)
    _check_mutation(mutation_id)
    if not references.is_version(expected_version) and expected_version != 0:
        raise InvalidInput.field("expected_version", _("Not a version."))
    assert isinstance(expected_version, int)
    # Also that the reference that is answered can be written at all.
    Reference(grant.project_id, name, expected_version + 1)


def _check_mutation(mutation_id: object) -> None:
    if not isinstance(mutation_id, str) or MUTATION_ID.fullmatch(mutation_id) is None:
        raise InvalidInput.field("mutation_id", _("1 to 64 characters: letters, digits, . _ : -"))


def _store(
    grant: Grant, name: str, provider: str, plaintext: bytearray, mutation_id: str, expected: int
) -> Put:
    try:
        stored = envelopes.find_by_mutation(grant.project_id, name, mutation_id)
        if stored is not None:
            _confirm(grant)
            return _replay(stored, expected, plaintext)
        with keyring.opened() as keys:
            envelope = envelopes.seal(
                plaintext,
                keys.active(),
                project_id=grant.project_id,
                name=name,
                version=expected + 1,
                mutation_id=mutation_id,
                created_at=clock.now(),
            )
        status, stored = _append(grant, provider, expected, envelope)
        if status == "existing":  # a twin of this call was a moment earlier
            return _replay(stored, expected, plaintext)
        return _answer("inserted", stored)
    finally:
        envelopes.wipe(plaintext)


@write_transaction
def _confirm(grant: Grant) -> None:
    policy.confirm(grant, PERMISSION)


@write_transaction
def _append(
    grant: Grant, provider: str, expected: int, envelope: Envelope
) -> tuple[Literal["inserted", "existing"], Envelope]:
    policy.confirm(grant, PERMISSION)
    secret = _head(grant.project_id, envelope.name, provider)
    status, stored = envelopes.append(expected, envelope)
    if status == "inserted":
        if secret.provider != provider:
            raise ProviderFixed
        keyring.require(envelope.key_id)
        _record(
            grant,
            "secret.created" if envelope.version == 1 else "secret.replaced",
            envelope.name,
            {"version": envelope.version, "mutation_id": envelope.mutation_id, "provider": provider or None},
        )
    return status, stored


def _head(project_id: str, name: str, provider: str) -> Secret:
    """The secret's row, locked; made where there is none."""
    fresh = Secret(project_id=project_id, name=name, provider=provider, created_at=clock.now())
    rows = Secret.objects.filter(project_id=project_id, name=name)
    found = db.lock(rows).first()
    if found is None:
        Secret.objects.bulk_create([fresh], ignore_conflicts=True)
        found = db.lock(rows).get()
    return found


def _replay(stored: Envelope, expected: int, plaintext: bytearray) -> Put:
    """A mutation id that was used: the same answer for the same value, a conflict for any other.

    Ciphertexts say nothing here: no two of one value are alike.
    """
    with keyring.opened() as keys:
        key = keys.resolve(stored.key_id)
        if key is None:
            raise SecretUnavailable
        if stored.version != expected + 1:
            raise SecretMutationConflict
        before = envelopes.unseal(stored, key)
    try:
        same = len(before) == len(plaintext) and hmac.compare_digest(before, plaintext)
    finally:
        envelopes.wipe(before)
    if not same:
        raise SecretMutationConflict
    return _answer("existing", stored)


def _answer(status: Literal["inserted", "existing"], stored: Envelope) -> Put:
    reference = Reference(stored.project_id, stored.name, stored.version)
    return Put(status, stored.version, reference.text, stored.created_at)


@write_transaction
def _switch(grant: Grant, name: str, mutation_id: object, *, enabled: bool) -> Switched:
    check_name(name)
    _check_mutation(mutation_id)
    assert isinstance(mutation_id, str)
    policy.confirm(grant, PERMISSION)
    secret = db.lock(Secret.objects.filter(project_id=grant.project_id, name=name)).first()
    if secret is None:
        raise NotFound
    before = SecretSwitch.objects.filter(secret=secret, mutation_id=mutation_id).first()
    if before is not None:
        if before.enabled != enabled:
            raise SecretMutationConflict
        return Switched(enabled, before.created_at, replayed=True)
    now = clock.now()
    SecretSwitch.objects.create(secret=secret, mutation_id=mutation_id, enabled=enabled, created_at=now)
    if (secret.disabled_at is None) != enabled:
        Secret.objects.filter(pk=secret.pk).update(disabled_at=None if enabled else now)
        _record(grant, "secret.enabled" if enabled else "secret.disabled", name, {"mutation_id": mutation_id})
    return Switched(enabled, now, replayed=False)


def _record(grant: Grant, action: str, name: str, metadata: dict[str, object]) -> None:
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action=action,
        subject=("secret", name),
        metadata={"name": name, **metadata},
        origin=grant.origin,
    )
