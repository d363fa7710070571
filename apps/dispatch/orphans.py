"""Files under the receipt root that nobody may be waiting for (runs.md §8.7): looking at them, and putting them aside.

Knows names and files only; whether somebody waits is asked elsewhere (services/orphans.py). Nothing is overwritten,
and what changes between the look and the move stays where it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from apps.artifacts.facts import UnsafeTarget, ensure_private_directory, is_uuid7, sync_directory
from apps.dispatch import receipts
from apps.dispatch.journal import shard_of

QUARANTINE = ".orphan-quarantine"
ENTRIES_MAX = 64
SHARDS = tuple(f"{number:02x}" for number in range(256))

_RECEIPT = re.compile(r"(.{36})\.json")
_TEMPORARY = re.compile(r"\.(.{36})\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True)
class Entry:
    """`kind`: receipt, temporary, unknown or unsafe; `modified_at_ms` is an epoch millisecond."""

    shard: str
    name: str
    kind: str
    attempt_id: str | None
    modified_at_ms: int
    size: int
    identity: str


@dataclass(frozen=True)
class Shard:
    """What lies in one shard; `overflow` says that there is more than was asked for."""

    entries: tuple[Entry, ...] = ()
    overflow: bool = False


class OrphanStore:
    """The files under one receipt root."""

    def __init__(self, root: str) -> None:
        """ValueError for a root that is relative, holds NUL or is that of a file system."""
        if not root.startswith("/") or "\0" in root or os.path.ismount(root) or Path(root) == Path("/"):
            raise ValueError("the receipt root must be an absolute path below the root of its file system")
        self._root = Path(root)

    def inspect_shard(self, shard: str, max_entries: int = 32) -> Shard:
        """Up to `max_entries` (1–64) entries; a missing shard is empty.

        ValueError for a shard or number out of bounds, UnsafeTarget for a shard that is no folder of the root.
        """
        if not 1 <= max_entries <= ENTRIES_MAX:
            raise ValueError("max_entries is 1 to 64")
        folder = self._folder(shard)
        if folder is None:
            return Shard()
        found: list[Entry] = []
        with os.scandir(folder) as entries:
            for one in entries:
                entry = _look(shard, folder / one.name)
                if entry is None:
                    continue
                if len(found) == max_entries:
                    return Shard(tuple(found), overflow=True)
                found.append(entry)
        return Shard(tuple(found))

    def quarantine(self, entry: Entry) -> str | None:
        """Moves an entry aside, if it is still the one that was looked at; its reference, None where it changed.

        Repeatable after a crash at any point. ValueError for a name that is none, UnsafeTarget for folders that are
        not the root's own.
        """
        if entry.name in ("", ".", "..") or "/" in entry.name or "\0" in entry.name:
            raise ValueError("not a bare file name")
        folder = self._folder(entry.shard)
        if folder is None or entry.kind == "unsafe":
            return None
        source = folder / entry.name
        if _identity(source) != entry.identity:
            return None
        reference = f"{QUARANTINE}/{entry.shard}/{_digest(entry)}.entry"
        target = self._root / reference
        ensure_private_directory(str(target.parent.parent))
        ensure_private_directory(str(target.parent))
        made = True
        try:
            os.link(source, target, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except FileExistsError:
            made = False
        if not _same_file(target, entry.identity):
            return None  # an entry of the same digest that is another file: never ours to replace
        try:
            same = self._folder(entry.shard) == folder and _identity(source) == entry.identity
        except UnsafeTarget:
            _undo(target, made)
            raise
        if not same:
            _undo(target, made)
            return None
        source.unlink()
        for changed in (target.parent, folder):
            with contextlib.suppress(OSError):
                sync_directory(str(changed))
        return reference

    def purge(self, shard: str, before_ms: int, max_entries: int = ENTRIES_MAX) -> int:
        """Removes what was put aside before an epoch millisecond, up to `max_entries`; returns how many.

        Receipts in quarantine have rows that say when they go, much sooner: one that is as old has lost its row.
        """
        gone: list[Path] = []
        for aside in (QUARANTINE, receipts.QUARANTINE):
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(self._root / aside / shard) as found,
            ):
                gone += [
                    Path(one.path)
                    for one in found
                    # The move is the last thing that changed the file's own record.
                    if one.stat(follow_symlinks=False).st_ctime_ns <= before_ms * 1_000_000
                    and not one.is_dir(follow_symlinks=False)
                ]
        for path in gone[:max_entries]:
            path.unlink(missing_ok=True)
        return len(gone[:max_entries])

    def _folder(self, shard: str) -> Path | None:
        if shard not in SHARDS:
            raise ValueError("a shard is two lower-case hexadecimal digits")
        path = self._root / shard
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISDIR(mode) or path.resolve().parent != self._root.resolve():
            raise UnsafeTarget("a shard must be a folder of the receipt root")
        return path


def _look(shard: str, path: Path) -> Entry | None:
    """An entry; None where it vanished meanwhile."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    kind, attempt_id = _kind(shard, path.name) if stat.S_ISREG(found.st_mode) else ("unsafe", None)
    at = max(0, found.st_mtime_ns // 1_000_000)
    return Entry(shard, path.name, kind, attempt_id, at, found.st_size, _identity_of(found))


def _kind(shard: str, name: str) -> tuple[str, str | None]:
    for kind, pattern in (("receipt", _RECEIPT), ("temporary", _TEMPORARY)):
        found = pattern.fullmatch(name)
        if found and is_uuid7(found[1]) and shard_of(found[1]) == shard:
            return kind, found[1]
    return "unknown", None


def _identity(path: Path) -> str | None:
    """Device, inode, size and time of a regular file; None for anything else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return _identity_of(found) if stat.S_ISREG(found.st_mode) else None


def _identity_of(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def _same_file(path: Path, identity: str) -> bool:
    found = path.lstat()
    return identity.startswith(f"{found.st_dev}:{found.st_ino}:")


def _digest(entry: Entry) -> str:
    return hashlib.sha256(
        f"{entry.shard}/{entry.name}\0{entry.identity}".encode("utf-8", "surrogateescape")
    ).hexdigest()


def _undo(target: Path, made: bool) -> None:
    if made:
        target.unlink(missing_ok=True)
