"""Writing the audit trail: entries are remembered and appended, under one head lock, last before commit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apps.audit.documents import document
from apps.audit.models import AuditChain, AuditEntry
from apps.core import canonical, chain, clock, db, participants

INSTANCE = ""
MAX_METADATA = 16_384
# Sorts behind every other topic, so that chain heads are the last rows a transaction locks.
TOPIC = "~audit"

_order = itertools.count()


@dataclass(frozen=True, order=True)
class _Noted:
    order: int
    entry: AuditEntry = field(compare=False)


@db.write_transaction
def record(
    scope: str,
    *,
    actor: tuple[str, str],
    action: str,
    subject: tuple[str, str],
    metadata: Mapping[str, Any] | None = None,
    origin: str,
    on_behalf_of: str | None = None,
    occurred_at: datetime | None = None,
) -> None:
    """Remembers one act of a principal; it is appended before the open transaction commits, or not at all.

    `scope` is a project id or `INSTANCE`; `metadata` is a JSON object of at most 16 KiB without secrets.
    Raises `canonical.NotCanonical` for other metadata (workflows.md §9.4).
    """
    plain = canonical.loads(canonical.dumps(dict(metadata or {}), max_bytes=MAX_METADATA))
    entry = AuditEntry(
        scope=scope,
        actor_type=actor[0],
        actor_id=actor[1],
        on_behalf_of=on_behalf_of,
        origin=origin,
        action=action,
        subject_type=subject[0],
        subject_id=subject[1],
        metadata=plain,
        occurred_at=occurred_at or clock.now(),
    )
    participants.note(TOPIC, _Noted(next(_order), entry))


def append(noted: Sequence[_Noted]) -> None:
    """Appends what the transaction recorded; in one order of scopes, so writers never wait in a ring."""
    by_scope: dict[str, list[AuditEntry]] = {}
    for item in noted:
        by_scope.setdefault(item.entry.scope, []).append(item.entry)
    for scope in sorted(by_scope):
        _append(scope, by_scope[scope])


def _append(scope: str, entries: list[AuditEntry]) -> None:
    head = _head(scope)
    for entry in entries:
        head.sequence += 1
        entry.sequence = head.sequence
        entry.previous_hash = head.hash
        entry.hash = head.hash = chain.link(head.hash, document(entry))
    AuditEntry.objects.bulk_create(entries)
    AuditChain.objects.filter(scope=scope).update(sequence=head.sequence, hash=head.hash)


def _head(scope: str) -> AuditChain:
    heads = db.lock(AuditChain.objects.filter(scope=scope))
    found = heads.first()
    if found is None:
        AuditChain.objects.bulk_create([AuditChain(scope=scope)], ignore_conflicts=True)
        found = heads.get()
    return found
