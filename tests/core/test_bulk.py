"""Set-based writes mean the same on both engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core import bulk, clock, ids
from apps.core.models import ControlJob
from apps.runs.models import Run, RunEvent, UncountedRun

pytestmark = pytest.mark.django_db
WHOLE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PART = WHOLE + timedelta(milliseconds=7)
COLUMNS = ["run_id", "project_id", "task_id", "status", "finished_at", "duration_ms"]


def row(number: int = 0, at: datetime = WHOLE, **changes: Any) -> tuple[Any, ...]:
    values = {
        "run_id": ids.uuid7(),
        "project_id": "p'\"\\ü\n",
        "task_id": ids.uuid7(),
        "status": "failed",
        "finished_at": at,
        "duration_ms": number,
    }
    return tuple({**values, **changes}.values())


def stored(pk: UUID) -> tuple[Any, ...]:
    return UncountedRun.objects.values_list(*COLUMNS).get(pk=pk)


def test_insert_keeps_every_value() -> None:
    rows = [row(1), row(2**53, PART), row(-5)]
    bulk.insert_rows(UncountedRun, COLUMNS, rows)
    for expected in rows:
        assert stored(expected[0]) == expected


@pytest.mark.parametrize("count", [199, 200, 201, 450])
def test_many_rows(count: int) -> None:
    rows = [row(number) for number in range(count)]
    bulk.insert_rows(UncountedRun, COLUMNS, rows)
    assert UncountedRun.objects.count() == count
    changed = bulk.update_rows(
        UncountedRun, ["run_id"], ["duration_ms"], [(found[0], -found[5]) for found in rows]
    )
    assert changed == {found[0] for found in rows}
    assert all(found.duration_ms <= 0 for found in UncountedRun.objects.all())


def test_no_rows_ask_nothing() -> None:
    with CaptureQueriesContext(connection) as seen:
        bulk.insert_rows(UncountedRun, COLUMNS, [])
        assert bulk.insert_or_update(UncountedRun, COLUMNS, [], "ON CONFLICT DO NOTHING") == set()
        assert bulk.update_rows(UncountedRun, ["run_id"], ["status"], []) == set()
    assert len(seen) == 0


def job(name: str, **values: Any) -> ControlJob:
    return ControlJob.objects.create(name=name, due_at=WHOLE, **values)


def test_json_nulls_and_text_keys() -> None:
    job("a"), job("b", lease_generation=4, last_started_at=PART), job("c", failures=3)
    document = {"z": 1, "a": [None, True, {"ü": "\"'\\ %s"}], "n": 1.5}
    changed = bulk.update_rows(
        ControlJob,
        ["name"],
        ["cursor", "last_started_at", "failures", "due_at"],
        [("a", document, PART, 1, PART), ("b", {}, None, 2, WHOLE), ("nobody", {}, None, 9, WHOLE)],
    )
    assert changed == {"a", "b"}
    a, b, c = ControlJob.objects.order_by("name")
    assert (a.cursor, a.last_started_at, a.failures, a.due_at) == (document, PART, 1, PART)
    assert (b.cursor, b.last_started_at, b.failures, b.lease_generation) == ({}, None, 2, 4)
    assert (c.failures, c.due_at) == (3, WHOLE)
    assert list(ControlJob.objects.filter(cursor__z=1)) == [a]


def test_a_column_of_nulls_only() -> None:
    job("a", last_started_at=PART), job("b", last_started_at=WHOLE)
    assert bulk.update_rows(ControlJob, ["name"], ["last_started_at"], [("a", None), ("b", None)]) == {
        "a",
        "b",
    }
    assert ControlJob.objects.filter(last_started_at=None).count() == 2


def test_keys_of_several_columns_and_conditions() -> None:
    job("a", failures=1), job("b", failures=1)
    update = [("a", 1, 10), ("b", 2, 20)]
    assert bulk.update_rows(ControlJob, ["name", "failures"], ["lease_generation"], update) == {"a"}
    assert bulk.update_rows(
        ControlJob, ["name"], ["failures"], [("a", 5), ("b", 5)], "t.lease_generation = 10"
    ) == {"a"}
    assert bulk.update_rows(
        ControlJob, ["name"], ["failures", "due_at"], [("a", 6, PART), ("b", 6, PART)], "t.due_at < v.c2"
    ) == {"a", "b"}
    assert not bulk.update_rows(ControlJob, ["name"], ["failures"], [("a", 7)], "t.failures > v.c1")


def test_statements_that_travel_together_answer_in_any_order() -> None:
    job("a", failures=1), job("b", failures=2)
    with transaction.atomic(), bulk.together():
        where, params = bulk.among(ControlJob, "name", ["a", "b"])
        before = bulk.select_rows_later(ControlJob, where, params, order="name", lock=True)
        changed = bulk.update_rows_later(ControlJob, ["name"], ["failures"], [("a", 7), ("c", 7)])
        bulk.delete_rows(ControlJob, "name", ["b"])
        left = bulk.select_values_later("SELECT name FROM core_controljob WHERE failures = %s", [7])
        assert left() == ["a"] and changed() == {"a"}
        assert [row.failures for row in before()] == [1, 2]
    assert ControlJob.objects.get().failures == 7


def test_an_error_among_statements_that_travel_together_undoes_them_all() -> None:
    job("a", failures=1)
    with pytest.raises(DatabaseError), transaction.atomic(), bulk.together():
        bulk.update_rows_later(ControlJob, ["name"], ["failures"], [("a", 7)])
        bulk.insert_rows(ControlJob, ["name", "due_at", "cursor", "failures"], [("a", PART, {}, 0)])
    assert ControlJob.objects.get().failures == 1


def test_a_time_is_compared_as_a_time_whatever_its_milliseconds() -> None:
    job("a")
    for before, after, moved in ((WHOLE, PART, True), (PART, WHOLE, False), (WHOLE, WHOLE, False)):
        ControlJob.objects.update(due_at=before, failures=0)
        rows = [("a", 1, after)]
        changed = bulk.update_rows(
            ControlJob, ["name"], ["failures", "last_started_at"], rows, "t.due_at < v.c2"
        )
        assert bool(changed) is moved
    # Equality, as a key: the stored text form is one and the same.
    ControlJob.objects.update(due_at=PART)
    assert bulk.update_rows(ControlJob, ["name", "due_at"], ["failures"], [("a", PART, 3)]) == {"a"}


def test_insert_or_update() -> None:
    first, second = row(1), row(2)
    bulk.insert_rows(UncountedRun, COLUMNS, [first])
    clause = (
        "ON CONFLICT (run_id) DO UPDATE SET duration_ms = excluded.duration_ms"
        " WHERE run_uncounted.duration_ms < excluded.duration_ms"
    )
    higher = (*first[:5], 9)
    assert bulk.insert_or_update(UncountedRun, COLUMNS, [higher, second], clause) == {first[0], second[0]}
    assert bulk.insert_or_update(UncountedRun, COLUMNS, [first, second], clause) == set()
    assert stored(first[0]) == higher
    nothing = bulk.insert_or_update(UncountedRun, COLUMNS, [first, row(3)], "ON CONFLICT DO NOTHING")
    assert len(nothing) == 1


def test_a_duplicate_is_an_integrity_error() -> None:
    one = row()
    with pytest.raises(IntegrityError), transaction.atomic():
        bulk.insert_rows(UncountedRun, COLUMNS, [one, one])
    assert not UncountedRun.objects.exists()


def test_select_rows_equals_the_orm() -> None:
    from tests.runs import kit

    task = kit.task(concurrency="parallel", max_parallel=8)
    runs = [kit.run_of(task, idempotency_key=str(number)) for number in range(5)]
    where, params = bulk.among(Run, "id", [run.pk for run in runs[:3]])
    found = bulk.select_rows(Run, where, params, order="id", lock=True)
    expected = list(Run.objects.filter(pk__in=[run.pk for run in runs[:3]]).order_by("pk"))
    names = [field.attname for field in Run._meta.concrete_fields]
    assert [[getattr(a, n) for n in names] for a in found] == [
        [getattr(b, n) for n in names] for b in expected
    ]
    assert all(not row._state.adding and row._state.db == "default" for row in found)
    event = RunEvent.objects.filter(run=runs[0]).order_by("sequence")[0]
    where, params = bulk.among(RunEvent, "id", [event.pk])
    (read,) = bulk.select_rows(RunEvent, where, params)
    assert (read.payload, read.created_at, read.attempt_id) == (
        event.payload,
        event.created_at,
        event.attempt_id,
    )
    assert read.created_at.tzinfo is not None and read.created_at <= clock.now()
    where, params = bulk.among(Run, "id", [])
    assert bulk.select_rows(Run, where, params) == []
    where, params = bulk.among(Run, "idempotency_key", ["0", "4", "it's"])
    assert {run.pk for run in bulk.select_rows(Run, where, params)} == {runs[0].pk, runs[4].pk}
