"""Where in a log secrets were masked: a small file beside it, written by the shim as it masks (lessons ideas 6).

A line of JSON with the names of the secrets, then 8 bytes for each place and secret: where the mark stands in the log,
and the number of the name. Of each secret the first PLACES_MAX places are noted. It may name a place whose mark never
came to stand in the log, where the disk was full: who shows marks looks at the text as well. Standard library only.
"""
# Why not pathlib: the shim stays small without it.
# ruff: noqa: PTH108

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from apps.artifacts.facts import log_paths

# What stands in the log for a secret.
MARK = b"***"
PLACES_MAX = 1_000
NAMES_MAX = 256
# The place of a secret that was masked in the run's output value, not in its log.
IN_OUTPUT = 2**40 - 1
BYTES_MAX = NAMES_MAX * (PLACES_MAX * 8 + 1_024)
_RECORD = 8
_NUMBER_BITS = 16


@dataclass(frozen=True, slots=True)
class Places:
    """`found` holds pairs of offset and number of the name, in the order of the log."""

    names: tuple[str, ...]
    found: tuple[tuple[int, int], ...]

    def printed(self) -> tuple[str, ...]:
        """Names of the secrets that were masked, in the order of their first place."""
        return tuple(self.names[number] for number in dict.fromkeys(number for _, number in self.found))

    def between(self, start: int, end: int) -> list[int]:
        """Offsets of the marks from `start` up to, not including, `end`; each once."""
        return list(dict.fromkeys(offset for offset, _ in self.found if start <= offset < end))


class Notebook:
    """The shim's side. Nothing is made before the first place; what cannot be written is left out."""

    def __init__(self, root: str, log_artifact_id: str, names: Sequence[str]) -> None:
        self._path = log_paths(root, log_artifact_id).places
        self._names = names
        self._counts = [0] * len(names)
        self._descriptor = -1

    def note(self, places: Sequence[tuple[int, int]]) -> None:
        """Pairs of offset and number of the name. Called before the marks are written, so that none goes unnoticed."""
        records = b""
        for offset, number in places:
            self._counts[number] += 1
            if self._counts[number] <= PLACES_MAX:
                records += (offset << _NUMBER_BITS | number).to_bytes(_RECORD, "big")
        if records:
            with suppress(OSError):
                self._write(records)

    def _write(self, records: bytes) -> None:
        if self._descriptor < 0:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
            records = json.dumps(self._names).encode() + b"\n" + records
        os.write(self._descriptor, records)

    def close(self) -> None:
        """Sync what was noted."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def read(root: str, log_artifact_id: str) -> Places | None:
    """What was masked in a log, None for nothing. A file that is no such file counts as nothing."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(log_paths(root, log_artifact_id).places, flags)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > BYTES_MAX:
            return None
        head, newline, data = file.read(BYTES_MAX).partition(b"\n")
    try:
        names = json.loads(head)
    except (ValueError, RecursionError):
        return None
    if not newline or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    places = []
    for at in range(0, len(data) // _RECORD * _RECORD, _RECORD):
        record = int.from_bytes(data[at : at + _RECORD], "big")
        offset, number = record >> _NUMBER_BITS, record & ((1 << _NUMBER_BITS) - 1)
        if number < len(names):
            places.append((offset, number))
    return Places(tuple(names), tuple(places))
