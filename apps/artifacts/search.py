"""Search in a log where it lies: a window at a time, so that its size is nobody's memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import FileIO

from apps.artifacts import reader
from apps.artifacts.reader import Missing

MAX_WANTED = 200
MAX_HITS = 200
# One call looks through this much, a fraction of a second; who wants all of a log asks again behind it.
BUDGET = 64 * 1024 * 1024
_LINE_MAX = 8 * 1024
_BEFORE, _AFTER = 80, 200


@dataclass(frozen=True)
class Hit:
    """A line that holds what is wanted: where the line and its first hit begin, and the line about that hit.

    Of a line that begins more than 8 KiB before the hit, `line_offset` is the hit's.
    """

    line_offset: int
    offset: int
    text: str = field(repr=False)


@dataclass(frozen=True)
class Found:
    """Hits in ascending order; looked through up to `next_offset`, or to the end where that is None."""

    hits: list[Hit]
    next_offset: int | None
    total_bytes: int


def search(artifact_id: str, wanted: str, offset: int, most: int) -> Found | Missing:
    """At most `most` (1–200) lines with `wanted` (1–200 characters; A–Z in either case) from byte `offset` on.

    Bounds are the caller's to check. Raises as `reader.read`.
    """
    file = reader.open_log(artifact_id)
    if file is None:
        return Missing()
    with file:
        return _search(file, wanted.encode().lower(), offset, most)


def _search(file: FileIO, needle: bytes, offset: int, most: int) -> Found:
    total = reader.size_of(file)
    at = reader.start_of(offset, total)
    until = min(total, at + BUDGET)
    hits: list[Hit] = []
    while at < until and len(hits) < most:
        # Far enough over the edge that a hit across it is whole.
        window = reader.exactly(file, at, min(reader.MAX_LENGTH + len(needle) - 1, total - at))
        lowered, begun, place = window.lower(), at, 0
        at = min(at + reader.MAX_LENGTH, total)
        while len(hits) < most:
            place = lowered.find(needle, place)
            if place < 0 or begun + place >= at:
                break
            line = _line_start(file, window, begun, place)
            if not hits or hits[-1].line_offset != line:
                where = begun + place
                hits.append(Hit(line, where, _text(file, line, where, len(needle), total)))
            end = window.find(b"\n", place)
            place = len(window) if end < 0 else end + 1
            if len(hits) == most:
                at = min(max(begun + place, begun + 1), total)
    return Found(hits, at if at < total else None, total)


def _line_start(file: FileIO, window: bytes, begun: int, place: int) -> int:
    newline = window.rfind(b"\n", max(0, place - _LINE_MAX), place)
    if newline >= 0:
        return begun + newline + 1
    if place >= _LINE_MAX:
        return begun + place
    back = max(0, begun + place - _LINE_MAX)
    before = reader.exactly(file, back, begun - back) if back < begun else b""
    newline = before.rfind(b"\n")
    if newline >= 0:
        return back + newline + 1
    return 0 if back == 0 else begun + place


def _text(file: FileIO, line: int, where: int, length: int, total: int) -> str:
    start = max(line, where - _BEFORE)
    about = reader.exactly(file, start, min(where + length + _AFTER, total) - start)
    end = about.find(b"\n", where - start)
    return (about if end < 0 else about[:end]).decode("utf-8", "replace").strip("\r")
