"""The files that a script left: where they lie, what is known of them, and how they go away again.

All files of an attempt lie in one folder beside its log, `<artifact id>.files` (0700), named by number and 0600; what
they are called stands in `manifest.json`, which is written last: a folder without it is one whose shim was killed.
Standard library only: the supervisor of a script writes what the panel reads.
"""
# Why not pathlib: every call here needs flags, descriptors or modes that pathlib does not offer.
# ruff: noqa: PTH106, PTH208

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from apps.artifacts.facts import (
    ArtifactFileError,
    UnsafeTarget,
    is_uuid7,
    log_paths,
    write_all,
)

# Why something stayed behind; `unexamined` is a mark, no number.
LEFT_OUT = (
    "symlink",
    "special",
    "hard_link",
    "foreign",
    "too_deep",
    "too_many",
    "too_large",
    "name_too_long",
    "changed",
    "no_space",
    "unreadable",
    "unexamined",
)
# Of one attempt: files, the bytes of all of them, characters of a name.
FILES_MAX = 100
BYTES_MAX = 268_435_456
NAME_MAX = 255
MANIFEST = "manifest.json"
MANIFEST_TEMPORARY = "manifest.tmp"
MANIFEST_BYTES_MAX = 262_144

_HEX = "0123456789abcdef"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMES = frozenset({MANIFEST, MANIFEST_TEMPORARY, *(str(number) for number in range(1, FILES_MAX + 1))})


class InvalidManifest(ArtifactFileError):
    """What is written down about an attempt's files is not what a supervisor writes."""

    code = "artifact_invalid_manifest"


@dataclass(frozen=True, slots=True)
class Collected:
    """One file: the relative path that the script gave it, made safe to show, and what it holds."""

    name: str
    size: int
    sha256: str
    content_type: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of all that a script left: what was kept, and how much was not, by code (LEFT_OUT)."""

    files: tuple[Collected, ...]
    left_out: Mapping[str, int]

    def fact(self) -> dict[str, object]:
        """For the stop fact and the history of the run; the files themselves stand in the manifest."""
        return {
            "kept": len(self.files),
            "bytes": sum([file.size for file in self.files]),
            "left_out": dict(self.left_out),
        }


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

    True where there was something, and then the shard is the caller's to sync. OSError from the system: what is left
    then is found by the next call.
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
    return True


def write_manifest(folder: int, run_id: str, attempt_id: str, files: Sequence[Collected]) -> None:
    """Says what the files in an open folder are, file 1 first; synced, and there as a whole or not at all. OSError."""
    value = {
        "schema_version": 1,
        "run_id": run_id,
        "attempt_id": attempt_id,
        "files": [[file.name, file.size, file.sha256, file.content_type] for file in files],
    }
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(MANIFEST_TEMPORARY, flags, 0o600, dir_fd=folder)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(MANIFEST_TEMPORARY, MANIFEST, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def read_manifest(root: str, log_artifact_id: str, run_id: str, attempt_id: str) -> tuple[Collected, ...]:
    """The files of an attempt in their order, none where there is no manifest.

    InvalidManifest, UnsafeTarget where anything but the panel's own files lies there, OSError from the system.
    """
    folder = folder_of(root, log_artifact_id)
    try:
        inside = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return ()
    except OSError:
        raise UnsafeTarget("the folder of the files is none") from None
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(MANIFEST, flags, dir_fd=inside)
    except FileNotFoundError:
        return ()
    finally:
        os.close(inside)
    with open(descriptor, "rb") as file:  # noqa: PTH123
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MANIFEST_BYTES_MAX:
            raise UnsafeTarget("the manifest is no small regular file")
        data = file.read(MANIFEST_BYTES_MAX + 1)
    return _decode(data, run_id, attempt_id)


def _decode(data: bytes, run_id: str, attempt_id: str) -> tuple[Collected, ...]:
    try:
        value = json.loads(data.decode())
        if (value["schema_version"], value["run_id"], value["attempt_id"]) != (1, run_id, attempt_id):
            raise InvalidManifest("it is another attempt's")
        files = tuple(Collected(*row) for row in value["files"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidManifest("it cannot be read") from None
    if not is_uuid7(attempt_id) or len(files) > FILES_MAX or len({file.name for file in files}) != len(files):
        raise InvalidManifest("too many files, or two of one name")
    for file in files:
        if not (
            is_name(file.name)
            and type(file.size) is int
            and 0 <= file.size <= BYTES_MAX
            and isinstance(file.sha256, str)
            and len(file.sha256) == 64
            and not file.sha256.strip(_HEX)
            and isinstance(file.content_type, str)
            and 1 <= len(file.content_type) <= 64
            and file.content_type.isascii()
            and file.content_type.isprintable()
        ):
            raise InvalidManifest("a file in it breaks the rules")
    return files


def is_name(value: object) -> bool:
    """A relative path of 1–255 printable characters, without a part that leads elsewhere."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= NAME_MAX
        and value.isprintable()
        and "\\" not in value
        and not {"", ".", ".."} & set(value.split("/"))
    )
