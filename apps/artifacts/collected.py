"""The files that a script left: where they lie, what is known of them, and how they go away again.

All files of an attempt lie in one folder beside its log, `<artifact id>.files` (0700), named by number and 0600; what
they are called stands in `manifest.json`, which is written last: a folder without it is one whose shim was killed.
Standard library only: the supervisor of a script writes what the panel reads.
"""
# Why not pathlib: every call here needs flags, descriptors or modes that pathlib does not offer.
# ruff: noqa: PTH106, PTH208

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from apps.artifacts.facts import UnsafeTarget, log_paths, sync_directory

FILES_MAX = 100
BYTES_MAX = 268_435_456
NAME_MAX = 255
MANIFEST = "manifest.json"
MANIFEST_TEMPORARY = "manifest.tmp"
MANIFEST_BYTES_MAX = 262_144

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMES = frozenset({MANIFEST, MANIFEST_TEMPORARY, *(str(number) for number in range(1, FILES_MAX + 1))})


def folder_of(root: str, log_artifact_id: str) -> str:
    """The folder of an attempt's collected files. ValueError for a bad root or id."""
    return log_paths(root, log_artifact_id).log.removesuffix(".log") + ".files"


@dataclass(frozen=True, slots=True)
class Removable:
    """What lies in the folder of an attempt's files, looked at and fit to be removed; `names` empty = nothing."""

    folder: str
    names: tuple[str, ...]
    bytes: int
    present: bool


def look(root: str, log_artifact_id: str) -> Removable:
    """What `remove` would remove, with nothing changed yet; for who removes more than this and wants all or nothing.

    UnsafeTarget where anything but the panel's own kind of files lies there, OSError from the system. The root and
    the shard are the caller's to check.
    """
    folder = folder_of(root, log_artifact_id)
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise UnsafeTarget("the folder of the files is none")
        descriptor = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return Removable(folder, (), 0, False)
    try:
        names = tuple(os.listdir(descriptor))
        total = 0
        for name in names:
            found = os.lstat(name, dir_fd=descriptor)
            if name not in _NAMES or not stat.S_ISREG(found.st_mode):
                raise UnsafeTarget("a foreign object lies among the files")
            total += found.st_size
    finally:
        os.close(descriptor)
    return Removable(folder, names, total, True)


def remove(found: Removable) -> bool:
    """Removes the files and their folder; what vanished meanwhile is fine, and so is doing it again.

    True where there was something. OSError from the system: what is left then is found by the next call.
    """
    if not found.present:
        return False
    try:
        descriptor = os.open(found.folder, _FOLDER)
    except FileNotFoundError:
        return False
    try:
        for name in found.names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    with suppress(FileNotFoundError):
        os.rmdir(found.folder)
    sync_directory(os.path.dirname(found.folder))  # noqa: PTH120
    return True
