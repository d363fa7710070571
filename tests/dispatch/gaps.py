"""Whether filling gaps leaves none: a program of its own, since what it fills stays filled."""

from __future__ import annotations

import ctypes
import sys

from apps.dispatch import heap


def gaps_left() -> int:
    """0 where neither allocator hands out a gap any more, though there were thousands."""
    libc = ctypes.CDLL(None)
    malloc = libc.malloc
    malloc.restype, malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    sizes = range(600, 9_000, 8)
    chunks = [malloc(size) for size in sizes]
    small = [bytes(60) for _ in range(10_000)]
    gaps = {id(one) for one in small[::2]}
    del small[::2]
    for place in chunks[::2]:
        libc.free(place)
    heap.fill_gaps()
    places = [malloc(size) for size in (24, 100, 500, 1_500, 8_000) for _ in range(20)]
    beyond = sum(place > max(chunks) for place in places)
    fresh = [bytes(60) for _ in range(100)]
    reused = sum(id(one) in gaps for one in fresh)
    if beyond < len(places) * 0.9 or reused:
        print(f"{beyond} of {len(places)} beyond, {reused} of 100 in gaps", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(gaps_left())
