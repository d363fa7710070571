"""Moving all that is sealed to the active key, and retiring keys (secrets-and-artifacts.md §3.3, §13.1).

Whatever seals something registers here how its values move and which keys they need. Moving goes on in bounded
batches, each a transaction of its own: it may be ended at any moment, and begun again moves what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, OuterRef, Q, Subquery

from apps.audit import services as audit
from apps.core import canonical, clock, db
from apps.core.db import write_transaction
from apps.vault import envelopes, keyring, sealing
from apps.vault.errors import KeyInUse, KeyUnknown, SecretUnavailable, SecretVersionConflict
from apps.vault.models import SealedPayload, SecretEnvelope

BATCH = 200
CONSOLE = ("system", "console")
ORIGIN = "command"


@dataclass(frozen=True)
class Use:
    """How many values need a key: those that count now, and versions of secrets that newer ones have replaced."""

    current: int = 0
    replaced: int = 0

    def __bool__(self) -> bool:
        return bool(self.current or self.replaced)


@dataclass(frozen=True)
class Moved:
    """What one batch came to; `after` is where the next one begins, None = through. `stuck` cannot be opened."""

    moved: int
    stuck: int
    after: Any | None


@dataclass(frozen=True)
class Holder:
    """Something that keeps sealed values: `move(after, limit)` is one batch, `uses()` tells its keys by id."""

    name: str
    move: Callable[[Any | None, int], Moved]
    uses: Callable[[], dict[str, Use]]
    table: str


_holders: dict[str, Holder] = {}


def register(holder: Holder) -> None:
    """Makes a holder known; raises ValueError for a name that is taken."""
    if _holders.setdefault(holder.name, holder) != holder:
        raise ValueError("a holder is registered twice")


def holders() -> list[Holder]:
    """All of them, by name."""
    return [_holders[name] for name in sorted(_holders)]


def move_all(limit: int = BATCH) -> Iterator[tuple[str, Moved]]:
    """Moves everything to the active key, a batch at a time, and tells each. Raises SecretUnavailable."""
    for holder in holders():
        after: Any | None = None
        while True:
            moved = holder.move(after, limit)
            yield holder.name, moved
            after = moved.after
            if after is None:
                break


def uses() -> dict[str, Use]:
    """For each key of the keyring, what of all holders still needs it."""
    with keyring.opened() as keys:
        found = dict.fromkeys(keys.keys, Use())
    for holder in holders():
        for key_id, use in holder.uses().items():
            before = found.get(key_id)
            if before is not None:
                found[key_id] = Use(before.current + use.current, before.replaced + use.replaced)
    return found


def without_key() -> int:
    """How many values that count nobody can open, as their key is not in the keyring; raises SecretUnavailable."""
    with keyring.opened() as keys:
        known = set(keys.keys)
    secrets = sum(use.current for key_id, use in _secret_uses().items() if key_id not in known)
    opened = sum(sealing.keys_in_use().values())
    return secrets + SealedPayload.objects.count() - opened


@write_transaction
def retire_key(key_id: str, *, give_up_replaced: bool = False) -> None:
    """Takes a key that nothing needs out of the keyring; backups sealed with it can then not be read.

    Every holder is asked, with all writers of sealed values kept out meanwhile. `give_up_replaced` lets versions of
    secrets go that newer ones have replaced: they are sealed for ever with the key of their time. Raises KeyInUse,
    KeyActive, KeyUnknown and SecretUnavailable.
    """
    db.keep_writers_out([holder.table for holder in holders()])
    found = uses()
    if key_id not in found:
        raise KeyUnknown
    use = found[key_id]
    if use.current or (use.replaced and not give_up_replaced):
        raise KeyInUse(current=use.current, replaced=use.replaced)
    note("keyring.key_retired", key_id, {"given_up": use.replaced})
    keyring.remove(key_id)


@write_transaction
def note(action: str, key_id: str, metadata: dict[str, object]) -> None:
    """The console's act on the audit trail of the installation; key ids are no secret."""
    audit.record(
        audit.INSTANCE,
        actor=CONSOLE,
        action=action,
        subject=("key", key_id),
        metadata=metadata,
        origin=ORIGIN,
    )


@write_transaction
def _move_payloads(after: Any | None, limit: int) -> Moved:
    moved, stuck, after = sealing.reseal(after, limit=limit)
    return Moved(moved, stuck, after)


def _payload_uses() -> dict[str, Use]:
    return {key_id: Use(current=count) for key_id, count in sealing.keys_in_use().items()}


@write_transaction
def _move_secrets(after: tuple[str, str] | None, limit: int) -> Moved:
    """Appends the same values anew, as the next version of each secret: nothing that is stored is ever changed.

    The mutation id follows from the version that is replaced, so that two who do this at once do it once.
    """
    moved = stuck = 0
    with keyring.opened() as keys:
        active = keys.active()
        rows = list(_behind(active.id, after)[:limit])
        for row in rows:
            key = keys.keys.get(row.key_id)
            try:
                old = envelopes.read(row)
                if key is None:
                    raise SecretUnavailable
                plaintext = envelopes.unseal(old, key)
            except SecretUnavailable:
                stuck += 1
                continue
            try:
                moved += _append_again(old, plaintext, active)
            finally:
                envelopes.wipe(plaintext)
    last = (rows[-1].project_id, rows[-1].secret_name) if len(rows) == limit else None
    return Moved(moved, stuck, last)


def _append_again(old: envelopes.Envelope, plaintext: bytearray, active: keyring.MasterKey) -> int:
    mutation = f"rekey:{canonical.sha256(active.id)[:16]}:{old.version}"
    fresh = envelopes.seal(
        plaintext,
        active,
        project_id=old.project_id,
        name=old.name,
        version=old.version + 1,
        mutation_id=mutation,
        created_at=clock.now(),
    )
    try:
        status, _stored = envelopes.append(old.version, fresh)
    except SecretVersionConflict:
        return 0  # somebody set it this moment, with the key of this moment
    if status == "existing":
        return 0
    keyring.require(active.id)
    audit.record(
        old.project_id,
        actor=CONSOLE,
        action="secret.resealed",
        subject=("secret", old.name),
        metadata={"name": old.name, "version": fresh.version, "mutation_id": mutation},
        origin=ORIGIN,
    )
    return 1


def _behind(active: str, after: tuple[str, str] | None) -> Any:
    """Newest versions that another key seals, by project and name."""
    rows = SecretEnvelope.objects.exclude(key_id=active).filter(version=Subquery(_newest()))
    if after is not None:
        project_id, name = after
        rows = rows.filter(Q(project_id__gt=project_id) | Q(project_id=project_id, secret_name__gt=name))
    return rows.order_by("project_id", "secret_name")


def _newest() -> Any:
    same = SecretEnvelope.objects.filter(
        project_id=OuterRef("project_id"), secret_name=OuterRef("secret_name")
    )
    return same.order_by("-version").values("version")[:1]


def _secret_uses() -> dict[str, Use]:
    counted = (
        SecretEnvelope.objects.annotate(newest=Subquery(_newest()))
        .order_by()
        .values("key_id")
        .annotate(every=Count("pk"), current=Count("pk", filter=Q(version=F("newest"))))
    )
    return {row["key_id"]: Use(row["current"], row["every"] - row["current"]) for row in counted}


register(Holder("payloads", _move_payloads, _payload_uses, SealedPayload._meta.db_table))
register(Holder("secrets", _move_secrets, _secret_uses, SecretEnvelope._meta.db_table))
