"""Files under the folder of the logs that no attempt names: found shard by shard, removed when seen twice (D23).

The first round only writes down what it finds; what is still there and untouched a day later goes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from apps.artifacts import store
from apps.artifacts.facts import UnsafeTarget
from apps.artifacts.models import ArtifactRetention, Orphan, Removal, StoredLog
from apps.artifacts.retention import files, records
from apps.artifacts.retention.records import Item
from apps.core import bulk, clock
from apps.core.db import write_transaction
from apps.runs.models import RunAttempt

# A file that was written to lately may belong to a start that is being stored just now.
UNTOUCHED = timedelta(hours=24)
SEEN_FOR = timedelta(hours=24)
NAMES = 4_000
BATCH = 200

_NAME = re.compile(r"\.?(local-[0-9a-f]{30})\.(?:log|files)(?:\..{1,32})?")
_SHARD = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True)
class Looked:
    """What one call saw: names, files nobody knows (newly found among them), what it removed, what is no file of
    ours; `after` is where the next call begins, None at the end of a round."""

    names: int = 0
    unknown: int = 0
    removed: int = 0
    bytes: int = 0
    strange: int = 0
    after: str | None = None
    examples: list[str] = field(default_factory=list)


def sweep(after: str | None = None, *, dry_run: bool = False, names: int = NAMES) -> Looked:
    """Looks at about `names` names behind the shard `after`; with `dry_run` nothing is written or removed."""
    root = Path(store.root())
    now = clock.now()
    seen = unknown = removed = size = strange = 0
    examples: list[str] = []
    place: str | None = None
    for shard in _shards(root, after):
        found, foreign = _names(root / shard)
        seen, strange, place = seen + sum(map(len, found.values())), strange + foreign, shard
        old = {name for name in found if _touched(root / shard, found[name]) <= now - UNTOUCHED}
        orphans = sorted(old - _known(old))
        unknown += len(orphans)
        examples = (examples + orphans)[:5]
        if not dry_run:
            _forget(shard, orphans)
            for batch in (orphans[i : i + BATCH] for i in range(0, len(orphans), BATCH)):
                went = _take(root / shard, found, batch, now)
                removed, size = removed + len(went), size + sum(item.bytes for item in went)
        if seen >= names:
            break
    else:
        place = None
    return Looked(seen, unknown, removed, size, strange, place, examples)


def waiting() -> tuple[int, int]:
    """How many attempts' files nobody knows, as far as the rounds have come, and their bytes; one query."""
    rows = list(Orphan.objects.values_list("bytes", flat=True)[:10_000])
    return len(rows), sum(rows)


def _shards(root: Path, after: str | None) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(root) if _SHARD.fullmatch(name))  # noqa: PTH208
    except FileNotFoundError:
        return []
    return [name for name in names if after is None or name > after]


def _names(shard: Path) -> tuple[dict[str, list[str]], int]:
    """The names in a shard by the artifact they belong to, and how many are nothing of ours."""
    found: dict[str, list[str]] = {}
    foreign = 0
    if shard.is_symlink() or not shard.is_dir():
        return found, 1
    with os.scandir(shard) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is None or entry.is_symlink() or match[1][6:8] != shard.name:
                foreign += 1
            else:
                found.setdefault(match[1], []).append(entry.name)
    return found, foreign


def _touched(shard: Path, names: Iterable[str]) -> datetime:
    """When one of the files was written to last; one that vanished was touched now."""
    try:
        newest = max(
            (path.lstat().st_mtime for name in names for path in [shard / name, *_inside(shard / name)]),
            default=0.0,
        )
    except OSError:
        return clock.now()
    return clock.from_ms(int(max(newest, 0.0) * 1000))


def _inside(path: Path) -> Iterable[Path]:
    return path.iterdir() if path.name.endswith(".files") and not path.is_symlink() and path.is_dir() else ()


def _known(names: set[str]) -> set[str]:
    """Those that an attempt names: listed ones by their index, and only what is left by a look through attempts."""
    if not names:
        return set()
    known = set(StoredLog.objects.filter(log_artifact_id__in=names).values_list("log_artifact_id", flat=True))
    left = sorted(names - known)
    for batch in (left[i : i + BATCH] for i in range(0, len(left), BATCH)):
        rows = RunAttempt.objects.filter(log_artifact_id__in=batch)
        retired = ArtifactRetention.objects.filter(attempt_id__in=rows.values("id"))
        # Files that came back after their removal was recorded are nobody's.
        mine = rows.exclude(pk__in=retired.values("attempt_id")).values_list("log_artifact_id", flat=True)
        known |= {str(name) for name in mine}
    return known


@write_transaction
def _forget(shard: str, orphans: Sequence[str]) -> None:
    """Strikes out what was an orphan of this shard and is none any more."""
    rows = Orphan.objects.filter(log_artifact_id__startswith=f"local-{shard}")
    if gone := set(rows.values_list("pk", flat=True)) - set(orphans):
        bulk.delete_rows(Orphan, "log_artifact_id", sorted(gone))


def _take(shard: Path, found: dict[str, list[str]], names: Sequence[str], now: datetime) -> list[Item]:
    """Writes down what is new, and removes what was written down a day ago and not touched since."""
    rows = {row.pk: row for row in Orphan.objects.filter(pk__in=names)}
    fresh: list[Orphan] = []
    went: dict[str, Item] = {}
    for name in names:
        touched, row = _touched(shard, found[name]), rows.get(name)
        if row is None or row.touched_at != touched:
            seen = _look(name)
            fresh.append(Orphan(name, seen.bytes if seen else 0, seen.files if seen else 0, touched, now))
        elif row.first_seen_at <= now - SEEN_FOR and (item := _remove(name, touched)) is not None:
            went[name] = item
    _store(fresh, went, now)
    return list(went.values())


def _look(name: str) -> files.Found | None:
    try:
        return files.look(name)
    except (OSError, UnsafeTarget):
        return None


def _remove(name: str, touched_at: datetime) -> Item | None:
    try:
        gone = files.retire(name)
    except (OSError, UnsafeTarget):
        return None
    return Item("", Removal.ORPHAN, touched_at, 1, gone.files, gone.bytes)


@write_transaction
def _store(fresh: Sequence[Orphan], went: dict[str, Item], now: datetime) -> None:
    bulk.delete_rows(Orphan, "log_artifact_id", [*(row.pk for row in fresh), *went])
    Orphan.objects.bulk_create(fresh)
    records.bill(went.values(), now)
