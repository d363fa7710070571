"""Leases of core, on the table of control jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.core import clock, leases
from apps.core.models import ControlJob
from tests.runs import kit

TTL = 1_000


def job(name: str = "a") -> ControlJob:
    return ControlJob.objects.create(name=name, due_at=clock.now())


def stored(name: str = "a") -> ControlJob:
    return ControlJob.objects.get(pk=name)


def take(owner: str, *rows: ControlJob) -> Any:
    return leases.claim(rows or (stored(),), owner, TTL, clock.now())


@pytest.mark.django_db
def test_free_then_held_then_expired(time: Any) -> None:
    job()
    (first,) = take("one")
    assert first.generation == 1 and first.expires_at == clock.now() + timedelta(milliseconds=TTL)
    assert first.token not in repr(first)
    row = stored()
    assert (row.lease_owner, row.lease_token, row.lease_generation) == ("one", first.token, 1)
    time.advance(TTL - 1)
    assert take("two") == []
    time.advance(1)
    (second,) = take("two")
    assert second.generation == 2 and second.token != first.token
    assert not leases.unreplaced(ControlJob.objects.all(), first).exists()
    assert leases.live(ControlJob.objects.all(), second, clock.now()).exists()


@pytest.mark.django_db
def test_the_owner_may_claim_again(time: Any) -> None:
    job()
    (first,) = take("one")
    (second,) = take("one")
    assert second.generation == 2 and second.token != first.token
    assert leases.renew([first], TTL, clock.now()) == [first]


@pytest.mark.django_db
def test_renew_only_while_live(time: Any) -> None:
    job()
    (held,) = take("one")
    time.advance(TTL - 1)
    assert leases.renew([held], TTL, clock.now()) == []
    assert stored().lease_expires_at == clock.now() + timedelta(milliseconds=TTL)
    assert stored().lease_generation == 1
    time.advance(TTL)
    assert leases.renew([held], TTL, clock.now()) == [held]
    # Late, but nobody else came: enough for settling, not for work.
    assert leases.unreplaced(ControlJob.objects.all(), held).exists()
    assert not leases.live(ControlJob.objects.all(), held, clock.now()).exists()


@pytest.mark.django_db
def test_release_keeps_the_generation(time: Any) -> None:
    job()
    (held,) = take("one")
    leases.release([held])
    row = stored()
    assert (row.lease_owner, row.lease_token, row.lease_expires_at, row.lease_generation) == (
        None,
        None,
        None,
        1,
    )
    (again,) = take("two")
    assert again.generation == 2
    leases.release([held])
    assert stored().lease_owner == "two"


@pytest.mark.django_db
def test_a_look_that_is_out_of_date_takes_nothing(time: Any) -> None:
    job()
    seen_free = stored()
    take("one")
    assert take("two", seen_free) == []
    time.advance(TTL - 1)
    (held,) = [leases.Claim(stored(), "one", 1, clock.now(), clock.now(), stored().lease_token)]
    seen = stored()
    assert leases.renew([held], TTL, clock.now()) == []
    time.advance(1)
    # What was seen has expired by now; what is stored was renewed and stands.
    assert take("two", seen) == []
    assert stored().lease_owner == "one"


@pytest.mark.django_db
def test_many_rows_and_none(time: Any) -> None:
    rows = [job(str(number)) for number in range(5)]
    take("other", rows[2])
    fresh = list(ControlJob.objects.order_by("name"))
    assert [claim.subject.pk for claim in take("one", *fresh)] == ["0", "1", "3", "4"]
    assert leases.claim([], "one", TTL, clock.now()) == []
    assert leases.renew([], TTL, clock.now()) == []
    leases.release([])


def test_one_of_many_takes_it(seeded: None) -> None:
    job()
    rows = [stored() for _ in range(6)]

    def claim(index: int) -> Any:
        def call() -> Any:
            with transaction.atomic():
                return leases.claim([rows[index]], f"owner {index}", TTL, clock.now())

        return call

    results = kit.race([claim(index) for index in range(6)])
    assert sum(len(result) for result in results) == 1
    assert stored().lease_generation == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "values",
    [
        {"lease_owner": "x"},
        {"lease_owner": None},
        {"lease_expires_at": None},
        {"lease_token": None},
        {"late": True},
    ],
)
def test_the_database_keeps_a_lease_whole(time: Any, values: dict[str, Any]) -> None:
    job()
    if values != {"lease_owner": "x"}:
        take("one")
    if values.pop("late", False):
        values["lease_expires_at"] = clock.now()
    with pytest.raises(IntegrityError), transaction.atomic():
        ControlJob.objects.update(**values)


@pytest.mark.django_db
def test_a_clock_that_was_set_back_renews_all_the_same(time: Any) -> None:
    job()
    (held,) = take("one")
    time.advance(-10)
    assert leases.renew([held], TTL, clock.now()) == []
    assert stored().lease_renewed_at == held.acquired_at
