"""Statements that travel together: what they answer, and what becomes of an error or of what the driver forgot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, IntegrityError, OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from apps.core import bulk, clock, db, ids
from apps.core.db import write_transaction
from apps.core.rounds import Rounds
from apps.dispatch import session
from apps.runs.models import UncountedRun

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not db.is_postgresql(), reason="SQLite has nothing to travel"),
]
COLUMNS = ["run_id", "project_id", "task_id", "status", "finished_at", "duration_ms"]
CHANGE = ["duration_ms"]


def row(number: int) -> tuple[Any, ...]:
    return (ids.uuid7(), "p", ids.uuid7(), "failed", clock.now(), number)


def counted() -> int:
    return UncountedRun.objects.count()


def rounds() -> Rounds:
    connection.ensure_connection()
    return Rounds(connections[DEFAULT_DB_ALIAS])


def test_answers_come_to_those_who_asked() -> None:
    @write_transaction
    def work() -> list[Any]:
        kept, other = row(1), row(2)
        with bulk.together():
            bulk.insert_rows(UncountedRun, COLUMNS, [kept, other])
            found = bulk.select_rows_later(UncountedRun, "run_id = %s", [kept[0]])
            changed = bulk.update_rows_later(UncountedRun, ["run_id"], CHANGE, [(other[0], 7)])
            counts = bulk.select_values_later(
                "SELECT count(*) FROM run_uncounted WHERE duration_ms = %s", [7]
            )
            assert [found()[0].finished_at, changed()] == [kept[4], {other[0]}]
            # Asked after the first answers: a round of its own.
            return [*counts(), *bulk.select_values_later("SELECT %s::text", ["'\\ü%"])()]

    assert work() == [1, "'\\ü%"]
    assert counted() == 2


def test_what_nobody_asks_about_is_stored_too() -> None:
    @write_transaction
    def work() -> None:
        with bulk.together():
            bulk.insert_rows(UncountedRun, COLUMNS, [row(1)])

    work()
    assert counted() == 1


@pytest.mark.parametrize("times", [1, 3])
def test_an_error_stores_nothing_and_harms_nobody_after_it(times: int) -> None:
    twice = row(1)

    @write_transaction
    def work(rows: list[tuple[Any, ...]]) -> None:
        with bulk.together():
            bulk.insert_rows(UncountedRun, COLUMNS, [row(0)])
            for one in rows:
                bulk.insert_rows(UncountedRun, COLUMNS, [one])
            bulk.insert_rows(UncountedRun, COLUMNS, [row(2)])

    for _ in range(times):
        with pytest.raises(IntegrityError):
            work([twice, twice])
    assert counted() == 0
    work([twice])
    assert counted() == 3


def test_an_error_of_the_caller_sends_nothing() -> None:
    @write_transaction
    def work() -> None:
        with bulk.together():
            bulk.insert_rows(UncountedRun, COLUMNS, [row(1)])
            raise ValueError

    with pytest.raises(ValueError):
        work()
    assert counted() == 0


def test_dropped_statements_are_prepared_again() -> None:
    tries = []

    @write_transaction
    def work(between: Callable[[], None]) -> None:
        tries.append(0)
        with bulk.together():
            bulk.insert_rows(UncountedRun, COLUMNS, [row(1)])
            bulk.select_values_later("SELECT 1")()
            if len(tries) == 2:
                between()
            bulk.insert_rows(UncountedRun, COLUMNS, [row(1)])

    def drop() -> None:
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")

    work(lambda: None)
    work(drop)
    assert (counted(), len(tries)) == (4, 3)


def test_a_savepoint_needs_no_second_try() -> None:
    @write_transaction
    def work() -> None:
        for _ in range(3):
            with db.savepoint(), bulk.together():
                bulk.insert_rows(UncountedRun, COLUMNS, [row(1)])
            with connection.cursor() as cursor:
                cursor.execute("DEALLOCATE ALL")

    work()
    assert counted() == 3


def test_more_than_both_sides_hold_at_once() -> None:
    both = rounds()
    answers = [both.add("SELECT repeat('x', 1000000) || %s::text", ["y" * 1_000_000]) for _ in range(12)]
    assert [len(answer()[0][0]) for answer in answers] == [2_000_000] * 12


def test_statements_are_counted_as_all_others() -> None:
    connection.ensure_connection()
    with CaptureQueriesContext(connection) as seen, bulk.together():
        bulk.select_values_later("SELECT 1")
        bulk.select_values_later("SELECT 2")
    assert [query["sql"] for query in seen.captured_queries] == ["SELECT 1", "SELECT 2"]


def test_a_connection_that_the_server_ended_says_so() -> None:
    both = rounds()
    (pid,) = bulk.select_values_later("SELECT pg_backend_pid()")()
    with pytest.raises(OperationalError):
        both.add("SELECT pg_terminate_backend(%s)", [pid])()
        both.add("SELECT 1", [])()
    connection.close()
    assert counted() == 0


def test_sessions_plan_by_indexes_also_after_the_connection_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"options": "-c work_mem=5MB"})
    connection.close()
    monkeypatch.setattr(session, "_run", lambda **_: "drained")
    for begin in (session.run_resident, session.run_queued, session.run_resident):
        assert begin() == "drained"
    for _connection in range(2):
        for name, value in (
            ("enable_seqscan", "off"),
            ("plan_cache_mode", "force_generic_plan"),
            ("work_mem", "5MB"),
        ):
            with connection.cursor() as cursor:
                cursor.execute(f"SHOW {name}")
                assert cursor.fetchone() == (value,)
        connection.close()
