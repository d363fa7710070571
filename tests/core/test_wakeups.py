"""Rings: coalesced in the queue, direct to whoever listens, again when nobody answers."""

from __future__ import annotations

import select
import time as real_time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django_q.models import OrmQ

from apps.core import wakeups
from apps.core.db import write_transaction
from apps.core.listener import Listener
from apps.core.models import Wakeup
from tests.runs import kit

CLUSTER = "runs"


@pytest.fixture
def node(seeded: None, tmp_path: Path, settings: Any) -> Iterator[Path]:
    settings.NODE_DIR = tmp_path / "node"
    yield settings.NODE_DIR


@write_transaction
def ring() -> None:
    wakeups.ring(CLUSTER)


def messages() -> int:
    return OrmQ.objects.filter(key=CLUSTER).count()


def heard(listener: Listener, seconds: float = 30.0) -> bool:
    found = bool(select.select([listener], [], [], seconds)[0])
    if found:
        listener.drain()
    return found


def test_a_hundred_rings_are_one_message(node: Path) -> None:
    for _ in range(100):
        ring()
    assert messages() == 1


def test_a_hundred_rings_in_one_transaction(node: Path) -> None:
    @write_transaction
    def many() -> None:
        for _ in range(100):
            wakeups.ring(CLUSTER)

    many()
    assert messages() == 1


@pytest.mark.parametrize("known", [False, True])
def test_rings_at_once_are_one_message(node: Path, known: bool) -> None:
    if known:
        ring()
        wakeups.answer(CLUSTER)
        OrmQ.objects.all().delete()
    results = kit.race([ring] * 24, threads=6)
    assert results == [None] * 24
    assert messages() == 1


def test_a_ring_that_is_rolled_back_never_was(node: Path) -> None:
    listener = Listener(CLUSTER)
    try:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            ring()
            raise ZeroDivisionError
        assert messages() == 0 and not heard(listener, 0.2)
    finally:
        listener.close()


def test_an_answer_makes_the_next_ring_a_message(node: Path, time: Any) -> None:
    ring()
    wakeups.answer(CLUSTER)
    assert wakeups.unanswered(wakeups.clock.now()) == []
    ring()
    assert messages() == 2


def test_a_stale_ring_is_sent_again(node: Path, time: Any) -> None:
    ring()
    time.advance(19_999)
    ring()
    assert messages() == 1 and wakeups.unanswered(wakeups.clock.now()) == []
    time.advance(1)
    assert wakeups.unanswered(wakeups.clock.now()) == [CLUSTER]
    since = Wakeup.objects.get().unanswered_since
    ring()
    assert messages() == 2
    assert Wakeup.objects.get().unanswered_since == since
    assert wakeups.deaf(wakeups.clock.now()) == [CLUSTER]
    wakeups.answer(CLUSTER)
    assert wakeups.deaf(wakeups.clock.now()) == []


def test_listeners_hear_at_once_and_all_of_them(node: Path) -> None:
    listeners = [Listener(CLUSTER) for _ in range(3)]
    other = Listener("control")
    try:
        ring()
        assert all(heard(listener) for listener in listeners)
        assert not heard(other, 0.1)
        # Coalesced or not in the queue: whoever lives hears every ring.
        ring()
        assert all(heard(listener) for listener in listeners)
        assert not heard(listeners[0], 0.1)
    finally:
        for listener in (*listeners, other):
            listener.close()


def test_a_listener_that_died_is_cleared_away(node: Path) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL forgets its listeners by itself")
    for _ in range(3):
        Listener(CLUSTER).close()
    assert len(list(wakeups.socket_folder(CLUSTER).iterdir())) == 3
    ring()
    assert list(wakeups.socket_folder(CLUSTER).iterdir()) == []


def test_a_deaf_listener_does_not_hold_up_a_ring(node: Path) -> None:
    listener = Listener(CLUSTER)
    try:
        began = real_time.monotonic()
        for _ in range(2_000 if connection.vendor == "sqlite" else 200):
            wakeups.poke(CLUSTER) if connection.vendor == "sqlite" else ring()
        # A full buffer that held up the ringer would hold it up for ever.
        assert real_time.monotonic() - began < 60
        assert heard(listener)
    finally:
        listener.close()
