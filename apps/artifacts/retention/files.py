"""Removes the files of one attempt: looked at first, all of them or none (secrets-and-artifacts.md §7.4)."""
# Why not pathlib: every call here looks at a name itself, never at what a link points to.
# ruff: noqa: PTH108

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from apps.artifacts import collected, facts, places, store
from apps.artifacts.facts import UnsafeTarget

Disposition = Literal["deleted", "already_absent"]


@dataclass(frozen=True)
class Retired:
    """What came of it: bytes and files that went, and the shard whose folder is to be synced (None = untouched)."""

    disposition: Disposition
    bytes: int
    files: int
    shard: str | None


@dataclass(frozen=True)
class Found:
    """What lies there of an attempt: paths of small files, the size of its log, its collected files."""

    shard: str
    log: str | None
    log_bytes: int
    beside: tuple[str, ...]
    collected: collected.Removable

    @property
    def bytes(self) -> int:
        """Of everything a person would count: the log and what the script left."""
        return self.log_bytes + self.collected.bytes

    @property
    def files(self) -> int:
        return int(self.log is not None) + len(self.collected.names)


def look(artifact_id: str) -> Found | None:
    """What lies on the disk of an attempt, None without its shard; nothing is changed.

    UnsafeTarget where something lies there that is no file of ours, OSError from the system.
    """
    root = store.root()
    if not _is_folder(root, missing_ok=False):
        return None
    paths = facts.log_paths(root, artifact_id)
    if not _is_folder(paths.shard, missing_ok=True):
        return None
    size = _size(paths.log, facts.SAFE_INTEGER_MAX)
    beside = tuple(path for path, most in _beside(paths) if _is_ours(path, most))
    return Found(
        paths.shard, None if size is None else paths.log, size or 0, beside, collected.look(root, artifact_id)
    )


def retire(artifact_id: str, *, sync: bool = True) -> Retired:
    """Removes the log of an attempt, what explains it, and what its script left; the log first.

    Without `sync` the caller syncs the shard before it records anything. UnsafeTarget where nothing was touched,
    OSError where the rest stays for another time.
    """
    found = look(artifact_id)
    if found is None:
        return Retired("already_absent", 0, 0, None)
    removed = found.log is not None and _unlink(found.log)
    touched = removed
    for path in found.beside:
        touched = _unlink(path) or touched
    left = collected.remove(found.collected)
    gone = removed or left
    if sync and (touched or left):
        facts.sync_directory(found.shard)
    size = (found.log_bytes if removed else 0) + (found.collected.bytes if left else 0)
    files = int(removed) + (len(found.collected.names) if left else 0)
    return Retired(
        "deleted" if gone else "already_absent",
        size if gone else 0,
        files,
        found.shard if touched or left else None,
    )


def _beside(paths: facts.LogPaths) -> Iterator[tuple[str, int | None]]:
    """Every other name an attempt's log may have, with its largest size; None = a fifo."""
    yield paths.log.replace(f"{paths.shard}/", f"{paths.shard}/.", 1) + ".fifo", None
    yield paths.places, places.BYTES_MAX
    yield paths.fact, facts.FACT_BYTES_MAX
    yield paths.fact_temporary, facts.FACT_BYTES_MAX


def _is_ours(path: str, most: int | None) -> bool:
    if most is not None:
        return _size(path, most) is not None
    found = _lstat(path)
    if found is not None and not stat.S_ISFIFO(found.st_mode):
        raise UnsafeTarget("no fifo stands where one belongs")
    return found is not None


def _size(path: str, most: int) -> int | None:
    found = _lstat(path)
    if found is None:
        return None
    if not stat.S_ISREG(found.st_mode) or not 0 <= found.st_size <= most:
        raise UnsafeTarget("something else stands where a file belongs")
    return found.st_size


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _is_folder(path: str, *, missing_ok: bool) -> bool:
    found = _lstat(path)
    if found is None and missing_ok:
        return False
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise UnsafeTarget("not a directory")
    return True


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
