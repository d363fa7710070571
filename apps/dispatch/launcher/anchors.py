"""Finding the beginnings of forms in output: with Hyperscan, or slowly without it.

The launcher runs without installed packages; a session says where that one lies, and only the shim of a run with
secrets loads it. Where it cannot be loaded, masking is slower and no less complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType

_MODULE = "hyperscan"
# Of a form so many bytes are looked for: fewer are found by chance, more make the engine's tables large.
ANCHOR = 8

# Where anchors lie in a buffer, overlapping ones too: (number of the anchor, its first byte, the byte behind it).
Finder = Callable[[memoryview], Sequence[tuple[int, int, int]]]


@cache
def engine_folder() -> str | None:
    """For the session: the folder that holds the engine's package, None where it is not installed."""
    from importlib.util import find_spec

    found = find_spec(_MODULE)
    origin = found.origin if found is not None else None
    return None if origin is None else origin.rpartition("/")[0].rpartition("/")[0]


def finder(anchors: list[bytes], folder: str | None) -> Finder:
    """Looks for `anchors`, which are 1 to ANCHOR bytes each, without NUL, and all different."""
    if folder is not None:
        with suppress(Exception):
            # Another version of Python than the session's, a processor that is too old, a package that was removed.
            return _fast(anchors, folder)
    return _plain(anchors)


def _fast(anchors: list[bytes], folder: str) -> Finder:
    # Without what the package itself loads: `typing` alone would be half a megabyte for each script.
    package = ModuleType("masking_engine")
    package.__path__ = [f"{folder}/{_MODULE}"]
    sys.modules[package.__name__] = package
    engine = __import__(f"{package.__name__}._hs_ext", fromlist=["Database"])
    database = engine.Database(mode=engine.HS_MODE_BLOCK)
    count = len(anchors)
    database.compile(
        expressions=anchors, ids=list(range(count)), elements=count, flags=[0] * count, literal=True
    )

    def find(buffer: memoryview) -> list[tuple[int, int, int]]:
        hits: list[tuple[int, int, int]] = []

        def note(number: int, first: int, end: int, flags: int, context: object) -> None:
            hits.append((number, end - len(anchors[number]), end))

        if buffer:
            database.scan(buffer, match_event_handler=note)
        return hits

    return find


def _plain(anchors: list[bytes]) -> Finder:
    families: dict[bytes, list[tuple[int, bytes]]] = {}
    # Of five characters with a line's end in two of them, one is left out where the end is written in one.
    least = min(map(len, anchors))
    for number, anchor in enumerate(anchors):
        families.setdefault(anchor[:least], []).append((number, anchor))

    def find(buffer: memoryview) -> list[tuple[int, int, int]]:
        data = bytes(buffer)
        return [
            (number, at, at + len(anchor))
            for at in range(len(data) - least + 1)
            if (beginning := data[at : at + least]) in families
            for number, anchor in families[beginning]
            if data.startswith(anchor, at)
        ]

    return find
