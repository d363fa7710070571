"""The values of an attempt's secrets, in the worker that is about to start it (secrets-and-artifacts.md §3.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet

from apps.core.errors import InvalidInput
from apps.vault import envelopes, keyring, providers, references
from apps.vault.envelopes import MAX_REFERENCES, Resolved
from apps.vault.errors import SecretDisabled, SecretUnavailable
from apps.vault.models import Secret


def resolve(project_id: str, texts: Sequence[str]) -> list[str] | None:
    """The value of each reference, in order, for an attempt of that project; None where one does not exist.

    At most 64 references, all of this project: else SecretUnavailable, before anything is read. One statement; each
    key is used once and wiped. Raises SecretDisabled, and SecretUnavailable for whatever cannot be opened.
    """
    if len(texts) > MAX_REFERENCES:
        raise SecretUnavailable
    try:
        if any(references.parse(text).project_id != project_id for text in texts):
            raise SecretUnavailable
    except InvalidInput:
        raise SecretUnavailable from None
    found = envelopes.resolve_many(texts)
    present = [one for one in found if one is not None]
    if len(present) < len(found):
        return None
    if any(one.disabled for one in present):
        raise SecretDisabled
    if not present:
        return []
    with keyring.opened() as keys:
        return [_open(one, keys) for one in present]


def disabled(project_id: str, names: Iterable[str] | QuerySet[Any, Any]) -> list[str]:
    """Those of the names that must not be used now; one query, of which names that lie in the database are a part."""
    wanted = names if isinstance(names, QuerySet) else set(names)
    rows = Secret.objects.filter(project_id=project_id, name__in=wanted, disabled_at__isnull=False)
    return sorted(rows.values_list("name", flat=True))


def by_reference(project_id: str, texts: Iterable[str]) -> Mapping[str, str] | None:
    """As `resolve`, by the text of the reference."""
    wanted = list(dict.fromkeys(texts))
    values = resolve(project_id, wanted)
    return None if values is None else dict(zip(wanted, values, strict=True))


def _open(one: Resolved, keys: keyring.Keyring) -> str:
    envelope = one.envelope
    key = keys.resolve(envelope.key_id)
    if key is None:
        raise SecretUnavailable
    plaintext = envelopes.unseal(envelope, key)
    try:
        text = envelopes.decode(plaintext)
    finally:
        envelopes.wipe(plaintext)
    return text if not one.provider else providers.read(one.provider, envelope.project_id, text)
