"""Byte ranges of a log, never through a link and never on trust in a name (secrets-and-artifacts.md §6.1)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from apps.artifacts import collected, facts, store
from apps.artifacts.errors import UnsafeReadTarget

MAX_LENGTH = 262_144
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Available:
    """Bytes `start` to `end_exclusive` of a log that had `total_bytes` when it was opened."""

    content: bytes = field(repr=False)
    start: int
    end_exclusive: int
    total_bytes: int

    @property
    def next_offset(self) -> int | None:
        """Where to go on, or None where nothing was left."""
        return self.end_exclusive if self.end_exclusive < self.total_bytes else None


@dataclass(frozen=True)
class Missing:
    """There is no such file."""


class Stream:
    """The bytes that a log had when it was opened, in pieces; a removal in between still serves it whole."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.total_bytes = size_of(file)
        self._start, self._end = 0, self.total_bytes

    def limit(self, start: int, end: int) -> None:
        """Gives only the bytes from `start` up to, not including, `end`."""
        self._start, self._end = max(0, start), min(end, self.total_bytes)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(self._start, self._end, MAX_LENGTH):
            yield exactly(self._file, start, min(MAX_LENGTH, self._end - start))

    def close(self) -> None:
        self._file.close()


def start_of(offset: int, total: int) -> int:
    """Where a read from `offset` begins in a log of `total` bytes; negative counts from the end."""
    return min(offset, total) if offset >= 0 else max(0, total + offset)


def read(artifact_id: str, offset: int, length: int) -> Available | Missing:
    """1 to 262,144 bytes from `offset`, or from that many bytes before the end where it is negative.

    Past the end the content is empty. Raises ValueError for other lengths and ids, UnsafeReadTarget for
    anything but a regular file that keeps its bytes.
    """
    if not 1 <= length <= MAX_LENGTH:
        raise ValueError("the length is out of bounds")
    file = open_log(artifact_id)
    if file is None:
        return Missing()
    with file:
        total = size_of(file)
        start = start_of(offset, total)
        content = exactly(file, start, min(length, total - start))
    return Available(content, start, start + len(content), total)


def size(artifact_id: str) -> int | None:
    """Bytes of the log at this moment, None where there is no file; raises UnsafeReadTarget."""
    file = open_log(artifact_id)
    if file is None:
        return None
    with file:
        return size_of(file)


def stream(artifact_id: str) -> Stream | Missing:
    """The whole log, for downloads; the caller closes it. Raises as `read`."""
    file = open_log(artifact_id)
    return Missing() if file is None else Stream(file)


def open_log(artifact_id: str) -> FileIO | None:
    """The file of a log, None where there is none; raises UnsafeReadTarget."""
    root = store.root()
    paths = facts.log_paths(root, artifact_id)
    if not is_folder(root) or not is_folder(paths.shard, missing_ok=True):
        return None
    return _open(paths.log)


def stream_file(log_artifact_id: str, position: int) -> Stream | Missing:
    """File number `position` of those that the script left, to be closed by the caller; raises UnsafeReadTarget."""
    root = store.root()
    folder = collected.folder_of(root, log_artifact_id)
    shard = facts.log_paths(root, log_artifact_id).shard
    if not (is_folder(root) and is_folder(shard, missing_ok=True) and is_folder(folder, missing_ok=True)):
        return Missing()
    file = _open(f"{folder}/{position}")
    return Missing() if file is None else Stream(file)


def _open(path: str) -> FileIO | None:
    try:
        return FileIO(os.open(path, _FLAGS))
    except FileNotFoundError:
        return None
    except OSError:
        raise UnsafeReadTarget from None


def is_folder(path: str, *, missing_ok: bool = False) -> bool:
    """True for a folder that is no link, False where nothing is and that may be; raises UnsafeReadTarget."""
    try:
        found = Path(path).lstat()
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return False
        raise UnsafeReadTarget from None
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeReadTarget
    return True


def size_of(file: FileIO) -> int:
    """Bytes it has now; raises UnsafeReadTarget for anything but a regular file."""
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or not 0 <= found.st_size <= facts.SAFE_INTEGER_MAX:
        raise UnsafeReadTarget
    return found.st_size


def exactly(file: FileIO, start: int, count: int) -> bytes:
    """That many bytes; raises UnsafeReadTarget where the file shrank."""
    content = os.pread(file.fileno(), count, start) if count else b""
    while len(content) < count:
        more = os.pread(file.fileno(), count - len(content), start + len(content))
        if not more:
            raise UnsafeReadTarget
        content += more
    return content
