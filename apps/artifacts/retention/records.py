"""What is written after files were deleted, never before: tombstones and the day's bill (§7.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Greatest, Least

from apps.artifacts.errors import RetentionConflict
from apps.artifacts.models import ArtifactRetention, RetentionReceipt
from apps.artifacts.retention import listing
from apps.core import bulk, ids
from apps.core.db import write_transaction

_COLUMNS = (
    "attempt_id", "log_artifact_id", "finished_at", "eligible_at", "disposition", "bytes_reclaimed", "recorded_at",
)  # fmt: skip

Outcome = Literal["inserted", "existing"]


@dataclass(frozen=True)
class Record:
    """The removal of one attempt's files, and for whose bill."""

    attempt_id: UUID
    log_artifact_id: str
    finished_at: datetime
    eligible_at: datetime
    disposition: str
    bytes_reclaimed: int
    recorded_at: datetime
    project_id: str
    rule: str
    files: int = 0


@dataclass(frozen=True)
class Item:
    """Something that was removed, for the bill of its day: so many things, files and bytes, of that time."""

    project_id: str
    rule: str
    at: datetime
    items: int = 1
    files: int = 0
    bytes: int = 0


@write_transaction
def record(rows: Sequence[Record]) -> list[Outcome]:
    """Writes the tombstones of files that were deleted, and takes them off the list; one answer per row.

    The first evidence wins: an equal attempt, artifact and finish time is `existing`. Raises RetentionConflict where
    another tells something else of the same attempt; the transaction is then rolled back.
    """
    values = [[getattr(row, name) for name in _COLUMNS] for row in rows]
    inserted = bulk.insert_or_update(ArtifactRetention, _COLUMNS, values, "ON CONFLICT DO NOTHING")
    found = {row.pk: row for row in ArtifactRetention.objects.filter(pk__in=[row.attempt_id for row in rows])}
    for row in rows:
        stored = found.get(row.attempt_id)
        if stored is None or (stored.log_artifact_id, stored.finished_at) != (
            row.log_artifact_id,
            row.finished_at,
        ):
            raise RetentionConflict
    listing.strike(row.attempt_id for row in rows)
    bill(
        (
            Item(row.project_id, row.rule, row.finished_at, 1, row.files, row.bytes_reclaimed)
            for row in rows
            if row.attempt_id in inserted
        ),
        max((row.recorded_at for row in rows), default=None),
    )
    return ["inserted" if row.attempt_id in inserted else "existing" for row in rows]


@write_transaction
def bill(items: Iterable[Item], now: datetime | None) -> None:
    """Adds to the bills of the day (UTC)."""
    sums: dict[tuple[str, str], Item] = {}
    newest: dict[tuple[str, str], datetime] = {}
    for item in items:
        key = (item.project_id, item.rule)
        known = sums.get(key)
        newest[key] = max(newest.get(key, item.at), item.at)
        sums[key] = (
            item
            if known is None
            else replace(
                known,
                at=min(known.at, item.at),
                items=known.items + item.items,
                files=known.files + item.files,
                bytes=known.bytes + item.bytes,
            )
        )
    for key, item in sorted(sums.items()):
        assert now is not None
        _add(item, newest[key], now)


def _add(item: Item, newest_at: datetime, now: datetime) -> None:
    values = {"items": item.items, "files": item.files, "bytes": item.bytes}
    key = {"project_id": item.project_id, "rule": item.rule, "day": now.date()}
    made = bulk.insert_or_update(
        RetentionReceipt,
        ["id", *key, *values, "oldest_at", "newest_at"],
        [[ids.uuid7(), *key.values(), *values.values(), item.at, newest_at]],
        "ON CONFLICT DO NOTHING",
    )
    if not made:
        RetentionReceipt.objects.filter(**key).update(
            **{name: F(name) + value for name, value in values.items()},
            oldest_at=Least("oldest_at", item.at),
            newest_at=Greatest("newest_at", newest_at),
        )
