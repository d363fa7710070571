"""One use case is one transaction: joining, trying again, participants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from apps.core import clock, db, participants
from apps.core.db import write_transaction
from apps.core.errors import Busy, DomainError
from apps.core.models import Wakeup
from tests.runs import kit


@pytest.fixture
def topic() -> Iterator[list[Any]]:
    """A topic whose subjects are collected."""
    seen: list[Any] = []
    participants.register("tests.topic", lambda subjects: seen.append(list(subjects)))
    yield seen
    for name in ("tests.topic", "tests.a", "tests.b"):
        participants._callbacks.pop(name, None)


def put(name: str) -> None:
    Wakeup.objects.create(cluster=name, rung_at=clock.now())


def names() -> set[str]:
    return set(Wakeup.objects.values_list("cluster", flat=True))


def locked() -> OperationalError:
    return OperationalError("database is locked")


def test_an_inner_call_joins(seeded: None, topic: list[Any]) -> None:
    @write_transaction
    def inner() -> None:
        put("inner")
        participants.note("tests.topic", 2)

    @write_transaction
    def outer() -> None:
        participants.note("tests.topic", 3)
        inner()
        participants.note("tests.topic", 1)
        participants.note("tests.topic", 3)
        put("outer")
        assert not topic

    outer()
    assert topic == [[1, 2, 3]]
    assert names() == {"inner", "outer"}


def test_an_error_undoes_everything(seeded: None, topic: list[Any]) -> None:
    @write_transaction
    def inner() -> None:
        put("inner")
        participants.note("tests.topic", 1)

    @write_transaction
    def outer() -> None:
        inner()
        raise DomainError

    with pytest.raises(DomainError):
        outer()
    assert names() == set() and topic == []

    @write_transaction
    def later() -> None:
        put("later")

    later()
    # Nothing of the broken one is left to be told.
    assert topic == [] and names() == {"later"}


def test_a_participant_that_fails_undoes_everything(seeded: None, topic: list[Any]) -> None:
    def refuse(subjects: Any) -> None:
        put("participant")
        raise DomainError

    participants.register("tests.a", refuse)

    @write_transaction
    def work() -> None:
        put("work")
        participants.note("tests.a", 1)

    with pytest.raises(DomainError):
        work()
    assert names() == set()


def test_what_a_participant_notes_is_told_too(seeded: None, topic: list[Any]) -> None:
    order: list[Any] = []

    def first(subjects: Any) -> None:
        order.append(("a", list(subjects)))
        participants.note("tests.b", 7)

    participants.register("tests.a", first)
    participants.register("tests.b", lambda subjects: order.append(("b", list(subjects))))

    @write_transaction
    def work() -> None:
        participants.note("tests.b", 9)
        participants.note("tests.a", 1)

    work()
    assert order == [("a", [1]), ("b", [7, 9])]


def test_participants_see_the_transaction_and_run_before_its_end(seeded: None, topic: list[Any]) -> None:
    def look(subjects: Any) -> None:
        assert connection.in_atomic_block and "work" in names()
        put("participant")

    participants.register("tests.a", look)

    @write_transaction
    def work() -> None:
        put("work")
        participants.note("tests.a", 1)

    work()
    assert names() == {"work", "participant"}


@pytest.mark.parametrize("failures", [0, 1, 4])
def test_a_busy_database_is_tried_again(seeded: None, topic: list[Any], failures: int) -> None:
    tries = []

    @write_transaction
    def work() -> str:
        tries.append(1)
        participants.note("tests.topic", len(tries))
        put(f"try {len(tries)}")
        if len(tries) <= failures:
            raise locked()
        return "done"

    assert work() == "done"
    assert len(tries) == failures + 1
    assert names() == {f"try {failures + 1}"} and topic == [[failures + 1]]


def test_five_tries_then_busy(seeded: None) -> None:
    tries = []

    @write_transaction
    def work() -> None:
        tries.append(1)
        raise locked()

    with pytest.raises(Busy) as refused:
        work()
    assert len(tries) == db.TRIES == 5
    assert isinstance(refused.value.__cause__, OperationalError)


@pytest.mark.parametrize(
    "error", [OperationalError("disk I/O error"), IntegrityError("UNIQUE"), ValueError()]
)
def test_other_errors_are_not_tried_again(seeded: None, error: Exception) -> None:
    tries = []

    @write_transaction
    def work() -> None:
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        work()
    assert len(tries) == 1


def test_only_the_outermost_tries_again(seeded: None) -> None:
    inner_calls, outer_calls = [], []

    @write_transaction
    def inner() -> None:
        inner_calls.append(1)
        if len(inner_calls) == 1:
            raise locked()

    @write_transaction
    def outer() -> None:
        outer_calls.append(1)
        put(f"outer {len(outer_calls)}")
        inner()

    outer()
    assert (len(inner_calls), len(outer_calls)) == (2, 2)
    assert names() == {"outer 2"}


def test_inside_somebody_elses_atomic_block_it_is_not_tried_again(seeded: None) -> None:
    tries = []

    @write_transaction
    def work() -> None:
        tries.append(1)
        raise locked()

    with pytest.raises(OperationalError), transaction.atomic():
        work()
    assert len(tries) == 1


def test_a_savepoint_leaves_the_transaction_usable(seeded: None) -> None:
    @write_transaction
    def work() -> None:
        put("a")
        with pytest.raises(IntegrityError) as refused, db.savepoint():
            put("a")
        assert db.is_unique_violation(refused.value)
        put("b")

    work()
    assert names() == {"a", "b"}


def test_writers_wait_for_each_other_without_an_error(seeded: None) -> None:
    """Lessons D24: no lock error reaches anybody."""
    put("count")
    Wakeup.objects.update(cluster="0")

    @write_transaction
    def raise_number() -> None:
        row = db.lock(Wakeup.objects.all()).get()
        Wakeup.objects.update(cluster=str(int(row.cluster) + 1))

    results = kit.race([raise_number] * 60, threads=6)
    assert results == [None] * 60
    assert names() == {"60"}


def test_serialisation_failures_of_postgresql_are_tried_again(seeded: None) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has deadlocks to break")
    put("a"), put("b")

    def cross(first: str, second: str) -> Any:
        @write_transaction
        def work() -> None:
            db.lock(Wakeup.objects.filter(cluster=first)).get()
            import time

            time.sleep(0.05)
            db.lock(Wakeup.objects.filter(cluster=second)).get()

        return work

    assert kit.race([cross("a", "b"), cross("b", "a")]) == [None, None]


def test_the_answer_of_a_joined_call_is_its_own(seeded: None) -> None:
    @write_transaction
    def inner(value: int) -> int:
        return value + 1

    @write_transaction
    def outer() -> list[int]:
        return [inner(1), inner(2)]

    assert outer() == [2, 3]
