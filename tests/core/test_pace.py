"""Batches beside other work: what they read holds nobody up, their sizes follow the time they take, they rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from apps.core import clock, db, pace
from apps.core.db import write_transaction, yielding_transaction
from apps.core.models import Wakeup
from apps.core.pace import Pace
from tests.runs import kit


def put(name: str) -> None:
    Wakeup.objects.create(cluster=name, rung_at=clock.now())


def elsewhere(work: Callable[[], Any]) -> None:
    """Done and committed on another connection."""
    assert kit.race([work]) == [None]


def names() -> list[str]:
    return sorted(Wakeup.objects.values_list("cluster", flat=True))


def test_others_write_while_a_batch_reads(seeded: None) -> None:
    """And what it read holds: on SQLite the whole is tried again, on PostgreSQL rows are locked where it matters."""
    seen: list[list[str]] = []
    held: list[float] = []

    @yielding_transaction
    def batch() -> None:
        seen.append(names())
        held.append(db.holding())
        if len(seen) == 1:
            elsewhere(write_transaction(lambda: put("other")))
        db.take_writer()
        put(f"after {len(names())}")

    batch()
    if connection.vendor == "sqlite":
        assert seen == [[], ["other"]] and held == [0.0, 0.0]
    else:
        assert seen == [[]]
    assert names() == ["after 1", "other"]


def test_a_batch_that_others_always_overtake_takes_the_writer_first_in_the_end(seeded: None) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has no one writer")
    tries: list[bool] = []

    @yielding_transaction
    def batch() -> None:
        names()
        tries.append(db.holding() > 0)
        if not tries[-1]:
            elsewhere(write_transaction(lambda: put(f"other {len(tries)}")))
        db.take_writer()
        put("batch")

    batch()
    assert tries == [False] * (db.TRIES - 1) + [True]
    assert names() == ["batch", *(f"other {n}" for n in range(1, db.TRIES))]


def test_a_batch_gives_way_to_whoever_holds_the_writer(seeded: None) -> None:
    """It does not queue for it: nothing of it waits inside the database beside a start."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has no one writer")
    begun: list[float] = []

    @yielding_transaction
    def batch() -> None:
        names()
        begun.append(time.monotonic())
        db.take_writer()

    @write_transaction
    def other() -> None:
        put("other")
        if not begun:
            kit.race([batch_refused])

    def batch_refused() -> None:
        with pytest.raises(Exception, match="database is locked"), db._deferred():
            names()
            at = time.monotonic()
            try:
                db.take_writer()
            finally:
                assert time.monotonic() - at < 1

    other()
    batch()
    assert len(begun) == 1 and names() == ["other"]


def test_only_the_time_that_others_are_kept_out_counts(seeded: None) -> None:
    @yielding_transaction
    def batch() -> None:
        names()
        time.sleep(0.2)
        db.take_writer()
        put("batch")
        time.sleep(0.05)

    batch()
    assert db.last_held() >= 0.05
    assert db.holding() == 0.0
    if connection.vendor == "sqlite":
        assert connection.transaction_mode == "IMMEDIATE"  # type: ignore[attr-defined]

    @write_transaction
    def usual() -> None:
        time.sleep(0.02)

    usual()
    assert db.last_held() >= 0.02


@pytest.mark.django_db
def test_sizes_follow_the_time() -> None:
    one, most = Pace(), 100
    budget = pace.budget()
    first = one.size("a", most)
    one.learn("a", first, budget / 10)
    assert one.size("a", most) == first + 1
    for _ in range(200):
        one.learn("a", one.size("a", most), one.size("a", most) * budget / 20)
    assert one.size("a", most) == 20
    one.learn("a", 20, budget * 100)
    assert one.size("a", most) == 10, "a single slow one may have met anything"
    for _ in range(10):
        one.learn("a", one.size("a", most), budget * 100)
    assert one.size("a", most) == 1
    one.learn("a", 0, 0.0)
    assert one.size("a", most) == 1, "nothing done says nothing"
    assert one.size("b", most) == first and one.size("b", 3) == 3


@pytest.mark.django_db(transaction=True)
def test_rests_follow_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = 100.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(round(seconds, 6))
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    one = Pace(rest=3.0)
    now += 50
    one.begin()
    now += 0.01
    one.pause()
    one.pause()
    assert slept == [0.03, 0.0]
    now += 500
    one.pause()
    assert slept.pop() == pace.REST_MOST_S
    with transaction.atomic():
        now += 0.01
        one.pause()
    Pace().pause()
    assert slept == [0.03, 0.0]
