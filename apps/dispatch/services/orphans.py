"""The auditor of a node's folders: what killed shims, lost attempts and moved claims left there (runs.md §8.7).

Receipts, reservations and strange files are put aside; folders of attempts hold what a run was given, in the clear,
and are removed. What belongs to an attempt that lives or is on its way is never touched, nor what is young, unsafe,
or lies in a shard with more entries than are looked at.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from apps.artifacts.facts import ArtifactFileError, is_uuid7
from apps.core import clock, node
from apps.core.errors import InvalidInput
from apps.dispatch import carried, journal, launching, predecessors
from apps.dispatch import remains as remaining
from apps.dispatch.launcher.files import PREPARED
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.orphans import ENTRIES_MAX, SHARDS, Entry, OrphanStore
from apps.dispatch.services import remains
from apps.runs.models import ACTIVE_ATTEMPT, RunAttempt

MODES = ("audit", "quarantine")
SHARDS_PER_PASS = 8
MAX_SHARDS = 32
ENTRIES_PER_SHARD = 32
MIN_AGE = timedelta(minutes=5)
KEEP_FOR = timedelta(days=7)


@dataclass
class Report:
    """What a pass found: `counts` by category, `actions` as (place, name, action), where the next pass begins.

    Actions: `kept_active`, `kept_journaled`, `kept_live` (its shim or its script lives), `kept_young`,
    `kept_unknown`, `unsafe`, `blocked_overflow`, `eligible` (mode audit), `quarantined`, `removed`, `unremovable`,
    `changed`, `purged`.
    """

    mode: str
    next_shard: int
    counts: Counter[str] = field(default_factory=Counter)
    actions: list[tuple[str, str, str]] = field(default_factory=list)

    def note(self, place: str, name: str, action: str) -> None:
        """Counts one entry."""
        self.counts[action] += 1
        self.actions.append((place, name, action))


@dataclass(frozen=True)
class _Folder:
    shard: str
    path: Path
    mode: int
    empty: bool


def audit(
    mode: str = "audit",
    *,
    start: int = 0,
    shards: int = SHARDS_PER_PASS,
    entries: int = ENTRIES_PER_SHARD,
    min_age: timedelta = MIN_AGE,
) -> Report:
    """One pass over this node's folders, from shard number `start` on; behind `ff` it begins anew.

    Two queries where something old is found, none otherwise. Raises InvalidInput for values out of bounds.
    """
    if mode not in MODES:
        raise InvalidInput.field("mode", f"One of {', '.join(MODES)}.")
    for name, value, most in (
        ("start", start, 255),
        ("shards", shards, MAX_SHARDS),
        ("entries", entries, ENTRIES_MAX),
    ):
        if not (0 if name == "start" else 1) <= value <= most:
            raise InvalidInput.field(name, f"A whole number up to {most}.")
    root = str(launching.receipts_root())
    report = Report(mode, (start + shards) % len(SHARDS))
    store = OrphanStore(root)
    before_ms = clock.now_ms() - int(min_age.total_seconds() * 1000)
    files: list[Entry] = []
    folders: list[_Folder] = []
    for number in range(start, start + shards):
        shard = SHARDS[number % len(SHARDS)]
        files += _files(store, shard, entries, before_ms, report)
        folders += _folders(shard, entries, before_ms, report)
        if mode == "quarantine":
            report.counts["purged"] += store.purge(
                shard, clock.now_ms() - int(KEEP_FOR.total_seconds() * 1000)
            )
    known = _Known(
        {*(one.attempt_id for one in files if one.attempt_id), *(one.path.name for one in folders)}
    )
    for entry in files:
        report.note(
            f"receipts/{entry.shard}",
            entry.name,
            _judge_file(entry, known, root) or _move(store, entry, mode),
        )
    for one in folders:
        report.note(
            f"attempts/{one.shard}", one.path.name, _judge_folder(one, known) or _clear(one, known, mode)
        )
    return report


class _Known:
    """What is on record of the attempts that a pass came across."""

    def __init__(self, names: Iterable[str]) -> None:
        ids = [UUID(name) for name in names]
        self.attempts: Mapping[str, RunAttempt] = (
            {str(row.pk): row for row in RunAttempt.objects.filter(pk__in=ids)} if ids else {}
        )
        rows = CompletionReceiptJournal.objects.filter(pk__in=ids).values_list("pk", flat=True) if ids else ()
        self.journaled = {str(pk) for pk in rows}

    def kept(self, name: str) -> str | None:
        """Why something of an attempt is kept, whatever it is."""
        attempt = self.attempts.get(name)
        if attempt is not None and attempt.status in ACTIVE_ATTEMPT:
            return "kept_active"
        return "kept_journaled" if name in self.journaled else None

    def elsewhere(self, attempt: RunAttempt) -> bool:
        """Whether an active attempt is another node's."""
        place = (attempt.worker_id or "").partition(":")[0]
        return bool(place) and place != node.node_id()


def _files(store: OrphanStore, shard: str, entries: int, before_ms: int, report: Report) -> list[Entry]:
    """The old files of a shard; all others are noted."""
    place = f"receipts/{shard}"
    try:
        found = store.inspect_shard(shard, entries)
    except (ArtifactFileError, OSError):
        report.note(place, "", "unsafe")
        return []
    old = []
    for entry in found.entries:
        if found.overflow:
            report.note(place, entry.name, "blocked_overflow")
        elif entry.kind == "unsafe":
            report.note(place, entry.name, "unsafe")
        elif entry.modified_at_ms > before_ms:
            report.note(place, entry.name, "kept_young")
        else:
            old.append(entry)
    return old


def _judge_file(entry: Entry, known: _Known, root: str) -> str | None:
    if entry.attempt_id is None:
        return None
    if (kept := known.kept(entry.attempt_id)) is not None:
        return kept
    # An attempt that was given up while its node was silent may run all the same; its shim needs the file.
    noted = journal.entries(root, entry.attempt_id) if entry.kind == "temporary" else []
    living = any(
        one is not None and node.Process(one.pid, one.start_ticks, one.boot_id).is_alive() for one in noted
    )
    return "kept_live" if living else None


def _move(store: OrphanStore, entry: Entry, mode: str) -> str:
    if mode == "audit":
        return "eligible"
    try:
        return "quarantined" if store.quarantine(entry) else "changed"
    except (ArtifactFileError, OSError):
        return "unremovable"


def _folders(shard: str, entries: int, before_ms: int, report: Report) -> list[_Folder]:
    """The old folders of attempts in a shard; everything else is noted."""
    place, root = f"attempts/{shard}", launching.attempts_root() / shard
    try:
        with os.scandir(root) as found:
            paths = [Path(one.path) for one, _number in zip(found, range(entries + 1), strict=False)]
    except FileNotFoundError:
        return []
    except OSError:
        report.note(place, "", "unsafe")
        return []
    old = []
    for path in paths[:entries]:
        try:
            seen = path.lstat()
            empty = stat.S_ISDIR(seen.st_mode) and not any(os.scandir(path))
        except FileNotFoundError:
            continue
        except OSError:
            empty = False
        if len(paths) > entries:
            report.note(place, path.name, "blocked_overflow")
        elif not stat.S_ISDIR(seen.st_mode) or not is_uuid7(path.name):
            report.note(place, path.name, "unsafe")
        elif seen.st_mtime_ns // 1_000_000 > before_ms:
            report.note(place, path.name, "kept_young")
        else:
            old.append(_Folder(shard, path, stat.S_IMODE(seen.st_mode), empty))
    return old


def _judge_folder(one: _Folder, known: _Known) -> str | None:
    attempt = known.attempts.get(one.path.name)
    nothing_ran = one.mode == PREPARED and one.empty
    if not carried.unheld(one.path):
        return "kept_live"
    if attempt is None:
        return None if nothing_ran else "kept_unknown"
    if nothing_ran and known.elsewhere(attempt):
        return None
    if (kept := known.kept(one.path.name)) is not None:
        return kept
    left = predecessors.one(attempt)
    return "kept_live" if left is not None and not left.gone() else None


def _clear(one: _Folder, known: _Known, mode: str) -> str:
    if mode == "audit":
        return "eligible"
    attempt = known.attempts.get(one.path.name)
    for left in remains.of([attempt] if attempt is not None else []):
        if (kept := remaining.taken(left)) is not None:
            remains.record(left.attempt.pk, kept)
    carried.remove_folder(one.path)
    return "unremovable" if os.path.lexists(one.path) else "removed"
