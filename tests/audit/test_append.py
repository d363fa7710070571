"""Appending to the trail: with the transaction, in order, under one head."""

from __future__ import annotations

import threading

import pytest
from django.db import DatabaseError, connection, transaction

from apps.audit import queries
from apps.audit.models import AuditChain, AuditEntry
from apps.audit.services import TOPIC, record
from apps.core import canonical, clock, participants
from apps.core.db import write_transaction
from tests.conftest import Time


def note(action: str = "thing.done", scope: str = "default", **metadata: object) -> None:
    record(
        scope, actor=("user", "u1"), action=action, subject=("thing", "t1"), metadata=metadata, origin="tests"
    )


@pytest.mark.django_db
def test_the_hashed_document(time: Time) -> None:
    note(n=1.0)
    note(word="ü")
    first, second = AuditEntry.objects.order_by("sequence")
    assert first.hash == canonical.digest(
        {
            "sequence": 1,
            "actor": {"type": "user", "id": "u1"},
            "origin": "tests",
            "action": "thing.done",
            "subject_type": "thing",
            "subject_id": "t1",
            "metadata": {"n": 1},
            "occurred_at": time.ms,
            "previous_hash": None,
        }
    )
    assert second.previous_hash == first.hash
    head = AuditChain.objects.get(scope="default")
    assert (head.sequence, head.hash) == (2, second.hash)


@pytest.mark.django_db
def test_one_transaction_appends_in_order_and_scopes_are_apart() -> None:
    @write_transaction
    def work() -> None:
        for number in range(12):
            note(f"step.{number}")
        note("elsewhere", scope="other")
        assert not AuditEntry.objects.exists()

    work()
    assert list(
        AuditEntry.objects.filter(scope="default").order_by("sequence").values_list("action", flat=True)
    ) == [f"step.{number}" for number in range(12)]
    assert queries.verify("other").checked_through == 1


@pytest.mark.django_db
def test_what_is_rolled_back_leaves_no_entry() -> None:
    @write_transaction
    def work() -> None:
        note()
        raise ValueError

    with pytest.raises(ValueError):
        work()
    note("after")
    assert [entry.action for entry in AuditEntry.objects.all()] == ["after"]


@pytest.mark.django_db
def test_the_head_is_locked_behind_all_other_participants() -> None:
    order: list[str] = []

    def first(subjects: object) -> None:
        order.append("a")
        participants.note("zz.late", "x")

    participants.register("aa.early", first)
    participants.register("zz.late", lambda subjects: order.append("z"))

    @write_transaction
    def work() -> None:
        note()
        participants.note("aa.early", "x")

    seen: list[int] = []
    participants.register("zz.late", lambda subjects: seen.append(AuditEntry.objects.count()))
    work()
    assert order == ["a", "z"]
    assert seen == [0] and AuditEntry.objects.count() == 1
    assert TOPIC > "zz.late"


@pytest.mark.django_db(transaction=True)
def test_concurrent_writers_queue(seeded: None) -> None:
    def write() -> None:
        try:
            for _ in range(5):
                note()
        finally:
            connection.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verdict = queries.verify("default")
    assert verdict.valid and verdict.checked_through == AuditEntry.objects.count() > 0
    assert AuditEntry.objects.count() == 20


@pytest.mark.django_db
@pytest.mark.parametrize("statement", ["UPDATE audit_entries SET action = 'x'", "DELETE FROM audit_entries"])
def test_rows_cannot_be_changed(statement: str) -> None:
    note()
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.django_db
def test_metadata_is_bounded_plain_json() -> None:
    for bad in ({"x": "y" * 20_000}, {"x": float("nan")}, {"x": object()}):
        with pytest.raises(canonical.NotCanonical):
            note(**bad)
    assert clock.now() and not AuditEntry.objects.exists()
