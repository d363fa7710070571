"""Time: UTC, in whole milliseconds, from one injectable source (architecture.md §4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

MAX_EPOCH_MS = 2**53 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


_source: Callable[[], int] = _system_ms


def now_ms() -> int:
    """Integer Unix milliseconds."""
    return _source()


def now() -> datetime:
    """The current time, truncated to milliseconds, in UTC."""
    return from_ms(now_ms())


def from_ms(ms: int) -> datetime:
    """The moment `ms` Unix milliseconds stand for; exact, no floating point on the way.

    Raises ValueError outside 0 … 2^53 - 1 and for what `datetime` cannot hold.
    """
    if not 0 <= ms <= MAX_EPOCH_MS:
        raise ValueError("time out of range")
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError as error:
        raise ValueError("time out of range") from error


def to_ms(at: datetime) -> int:
    """Integer Unix milliseconds of an aware moment, rounded down."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


def rfc3339(at: datetime) -> str:
    """`2026-11-29T18:05:03.120Z`: how the API writes time."""
    text = at.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


@contextmanager
def fixed(source: Callable[[], int]) -> Iterator[None]:
    """Replaces the source of time for the length of a block; for tests."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
