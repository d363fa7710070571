"""Memory before a fork: what a process holds is shared with whatever it forks, and should stay so.

The supervisor's parent and the launcher fork all that runs here. The launcher loads nothing but the standard library,
so this asks for no more.
"""

from __future__ import annotations

import ctypes
import gc
import sys

_M_ARENA_MAX = -8
_ARENAS = 2
# Larger than most gaps, and below the size from which glibc maps memory apart.
_LARGEST, _FINE, _SMALLEST = 120_000, 1_032, 24
_NEAR_TOP = 524_288
# Gaps of a preloaded parent are 1 to 2 MiB together; another allocator must not be followed without end.
_GAPS_BYTES, _POOL_BYTES = 32 * 1024**2, 1024**2
# Python's own allocator serves sizes up to 512 bytes from pools of one size each; places that follow one another come
# from a pool that was not used before.
_SIZES = range(16, 513, 16)
_IN_A_ROW = 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
_libc.free.argtypes, _libc.free.restype = [ctypes.c_void_p], None
# Filled gaps: never freed, that is the point.
_filled: list[object] = []


def few_arenas() -> None:
    """Keeps glibc from giving each thread a heap of its own; elsewhere nothing happens."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, _ARENAS)


def share() -> None:
    """Called right before the first fork.

    What lives now is never looked at by the collector, and what a child makes lies together, on pages of its own.
    """
    gc.collect()
    _give_back()
    fill_gaps()
    gc.freeze()


def fill_gaps() -> None:
    """Takes every gap between what lives on the heap, so that what is forked gets memory that lies together.

    A child that used the gaps would copy a whole shared page for each of them: 4 MiB for the tables that one SQLite
    connection remembers. Only glibc and Python's own allocator are known here; with others nothing happens.
    """
    if not hasattr(_libc, "malloc_trim"):
        return
    for size in _SIZES:
        _fill_pools(size)
    size, top, taken = _LARGEST, _top(), 0
    while size >= _SMALLEST and taken < _GAPS_BYTES:
        place = _libc.malloc(size)
        if place is not None and place < top:
            taken += size
            continue
        _libc.free(place)
        # Chunks are multiples of 16 bytes, of which 8 are not to be had.
        size = max(size * 7 // 8, _FINE) if size > _FINE else size - 16


def _give_back() -> None:
    """Returns freed heap to the system before it would be shared with every child."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def _top() -> int:
    """Where memory begins that nobody had yet; 0 where another allocator is at work.

    Has glibc sort what was freed last, which each child would do by itself otherwise.
    """
    _libc.sbrk.argtypes, _libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    for _ in range(_GAPS_BYTES // _LARGEST):
        place: int | None = _libc.malloc(_LARGEST)
        below_end = -1 if place is None else int(_libc.sbrk(0)) - place
        if place is not None and below_end > _NEAR_TOP:
            continue
        _libc.free(place)
        return place if place is not None and below_end >= 0 else 0
    return 0


def _fill_pools(size: int) -> None:
    """Until places of an untouched pool are handed out."""
    last = run = 0
    for _ in range(_POOL_BYTES // size):
        made = _object_of(size)
        _filled.append(made)
        run = run + 1 if id(made) == last + size else 0
        last = id(made)
        if run == _IN_A_ROW:
            return


def _object_of(size: int) -> object:
    """A new object that takes one place of `size` bytes and that the collector does not know."""
    if size == 16:
        return object()
    if size == 32:
        return float(len(_filled))
    return bytes(size - sys.getsizeof(b""))
