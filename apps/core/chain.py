"""Hash chains: each document is hashed with the hash of the one before it (workflows.md §9.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from apps.core import canonical


@dataclass(frozen=True)
class Verdict:
    """What a walk along a chain found.

    `checked_through` is the last sequence that is right; `first_broken` names the first that is not, with the
    previous hash it should have had and the one it has. A chain that ends before its head has
    `first_broken` = the first missing sequence.
    """

    valid: bool
    checked_through: int
    first_broken: int | None = None
    expected_previous_hash: str | None = None
    actual_previous_hash: str | None = None


@dataclass(frozen=True)
class Link:
    """One stored row of a chain: its document has no `previous_hash` key of its own."""

    sequence: int
    previous_hash: str | None
    hash: str
    document: dict[str, Any]


def link(previous: str | None, document: dict[str, Any]) -> str:
    """The hash of `document` behind `previous` (None for the first)."""
    return canonical.digest({**document, "previous_hash": previous})


def verify(rows: Iterable[Link], head: tuple[int, str | None]) -> Verdict:
    """Walks rows in ascending order and compares the end with `head` (sequence, hash), so that a cut tail shows."""
    running: str | None = None
    last = 0
    for row in rows:
        right = (
            row.sequence == last + 1
            and row.previous_hash == running
            and row.hash == link(running, row.document)
        )
        if not right:
            return Verdict(False, last, row.sequence, running, row.previous_hash)
        running, last = row.hash, row.sequence
    if (last, running) != head:
        return Verdict(False, last, last + 1, running, head[1])
    return Verdict(True, last)
