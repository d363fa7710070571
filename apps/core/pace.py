"""Batches beside work that people wait for: each transaction short, and a rest after it."""

from __future__ import annotations

import time

from django.db import connection

from apps.core import db

# For how long a transaction of a batch may keep others out. On SQLite that is everybody who writes, and who waits
# there looks again after 1, 3, 8, 18 ms; on PostgreSQL it is who wants the same rows.
BUDGET_S = {"sqlite": 0.005, "postgresql": 0.02}
FIRST = 8
# A machine that slept, or was busy with others, is not to rest for that: jobs end within their time.
REST_MOST_S = 0.25


class Pace:
    """How many things go into one transaction, learned from how long the last ones took, and the rests between.

    `rest` says how many times as long as it worked it rests (0 = never): so whoever waits, waits for one transaction.
    """

    def __init__(self, rest: float = 0.0) -> None:
        self._rest = rest
        self._sizes: dict[str, float] = {}
        self._since = time.monotonic()

    def begin(self) -> None:
        """Work begins; what was before it needs no rest."""
        self._since = time.monotonic()

    def size(self, kind: str, most: int) -> int:
        """How many things the next transaction of this kind should hold, 1 to `most`."""
        return max(1, min(most, int(self._sizes.get(kind, FIRST))))

    def after(self, kind: str, amount: int) -> None:
        """Right behind a transaction in which so many things were done: learns from it, then rests."""
        self.learn(kind, amount, db.last_held())
        self.pause()

    def learn(self, kind: str, amount: int, held: float) -> None:
        """One that kept others out for `held` seconds; sizes follow slowly, for a single one may have met anything."""
        fits = amount * budget() / max(held, 1e-6)
        if fits < amount:
            self._sizes[kind] = max(1.0, fits, amount / 2)
        else:
            self._sizes[kind] = max(self._sizes.get(kind, FIRST), min(fits, amount + 1))

    def pause(self) -> None:
        """Rests for what was done since the last rest; never while a transaction is open."""
        if self._rest and not connection.in_atomic_block:
            time.sleep(min(self._rest * (time.monotonic() - self._since), REST_MOST_S))
        self._since = time.monotonic()


def budget() -> float:
    """Seconds for which one transaction of a batch may keep others out."""
    return BUDGET_S[connection.vendor]


def spent() -> bool:
    """Whether the open transaction has kept others out for as long as it may."""
    return db.holding() >= budget()
