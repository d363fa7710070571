"""Finding the beginnings of forms in output: with an automaton in native code, or slowly without it.

The launcher runs without installed packages; a session says where the automaton lies, and only the shim of a run with
secrets loads it. Where it cannot be loaded, masking is slower and no less complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from apps.dispatch.launcher.forms import SHORTEST

_MODULE = "ahocorasick_rs"
# The fast automaton takes up to half a KiB for each byte of an anchor, the compact one a tenth of that.
_FAST_ANCHORS = 2_000

# Where anchors lie in a buffer, overlapping ones too: (number of the anchor, its first byte, the byte behind it).
Finder = Callable[[memoryview], Sequence[tuple[int, int, int]]]


def engine_folder() -> str | None:
    """For the session: the folder that holds the automaton's package, None where it is not installed."""
    from importlib.util import find_spec

    found = find_spec(_MODULE)
    origin = found.origin if found is not None else None
    return None if origin is None else origin.rpartition("/")[0].rpartition("/")[0]


def finder(anchors: list[bytes], folder: str | None) -> Finder:
    """Looks for `anchors`, which are SHORTEST bytes each and all different."""
    if folder is not None:
        sys.path.append(folder)
        try:
            from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind
        except Exception:
            # Another version of Python than the session's, or a package that was removed.
            return _plain(anchors)
        finally:
            sys.path.remove(folder)
        kind = Implementation.DFA if len(anchors) <= _FAST_ANCHORS else Implementation.ContiguousNFA
        find = BytesAhoCorasick(anchors, MatchKind.Standard, kind).find_matches_as_indexes
        return lambda buffer: find(buffer, overlapping=True)
    return _plain(anchors)


def _plain(anchors: list[bytes]) -> Finder:
    numbers = {anchor: number for number, anchor in enumerate(anchors)}

    def find(buffer: memoryview) -> list[tuple[int, int, int]]:
        data = bytes(buffer)
        return [
            (numbers[text], at, at + SHORTEST)
            for at in range(len(data) - SHORTEST + 1)
            if (text := data[at : at + SHORTEST]) in numbers
        ]

    return find
