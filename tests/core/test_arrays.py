"""Rows as binary arrays: every value comes back as it went, and what a column cannot hold is refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from django.db import DEFAULT_DB_ALIAS, DatabaseError, DataError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from apps.core import bulk, clock, db, ids
from apps.core.arrays import layout
from apps.core.rounds import Rounds
from apps.runs.models import UncountedRun

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(not db.is_postgresql(), reason="SQLite knows no arrays"),
]
COLUMNS = ["run_id", "project_id", "task_id", "status", "finished_at", "duration_ms"]
NOON = datetime(2026, 1, 2, 12, 0, 0, 123_457, tzinfo=UTC)
VALUES: list[tuple[str, list[Any]]] = [
    ("smallint", [0, -1, 32_767, -32_768, None]),
    ("integer", [0, -1, 2**31 - 1, -(2**31), None]),
    ("bigint", [0, -1, 2**63 - 1, -(2**63), None]),
    ("boolean", [True, False, None]),
    ("uuid", [UUID(int=0), UUID(int=2**128 - 1), ids.uuid7(), None]),
    ("varchar(8)", ["", "a", "ü€😀", '{}",\\\n', None]),
    ("text", ["x" * 100_000, "NULL", None]),
    ("timestamp with time zone", [NOON, NOON - timedelta(days=30_000), datetime(9999, 12, 31, tzinfo=UTC), None]),
    ("date", [date(2000, 1, 1), date(1970, 1, 1), date(9999, 12, 31), None]),
    ("jsonb", [{"a": [1, None, "ü\"\\"]}, [], "text", 0, True, 2**70, None]),
]  # fmt: skip


def asked(types: list[str], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    shape = layout(tuple(types))
    connection.ensure_connection()
    rounds = Rounds(connections[DEFAULT_DB_ALIAS], prepares=False)
    found = rounds.add(f"SELECT * FROM {shape.source}", shape.columns(rows))()
    return [tuple(map(_read, types, values)) for values in found]


def _read(kind: str, value: Any) -> Any:
    return json.loads(value) if kind == "jsonb" and value is not None else value  # Django's own way


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[kind for kind, _values in VALUES])
def test_every_value_comes_back(kind: str, values: list[Any]) -> None:
    assert [row[0] for row in asked([kind], [(value,) for value in values])] == values
    assert asked([kind], [(None,), (None,)]) == [(None,), (None,)]


def test_columns_stay_beside_each_other() -> None:
    types = [kind for kind, _values in VALUES]
    rows = [tuple(values[number % len(values)] for _kind, values in VALUES) for number in range(50)]
    assert asked(types, rows) == rows


def test_an_id_may_be_text_and_a_time_of_any_zone() -> None:
    one, east = ids.uuid7(), timezone(timedelta(hours=8))
    types = ["uuid", "timestamp with time zone"]
    assert asked(types, [(str(one), NOON.astimezone(east))]) == [(one, NOON)]


def row(**changes: Any) -> tuple[Any, ...]:
    values = {
        "run_id": ids.uuid7(),
        "project_id": "p",
        "task_id": ids.uuid7(),
        "status": "failed",
        "finished_at": clock.now(),
        "duration_ms": 1,
    }
    return tuple({**values, **changes}.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "x" * 33},
        {"project_id": "a\0b"},
        {"duration_ms": 2**63},
        {"duration_ms": None},
        {"run_id": None},
    ],
    ids=["too long", "NUL", "too large", "null", "no key"],
)
def test_what_a_column_cannot_hold_is_refused_and_nothing_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(DatabaseError), transaction.atomic():
        bulk.insert_rows(UncountedRun, COLUMNS, [row(), row(**wrong)])
    assert not UncountedRun.objects.exists()


def test_a_number_too_large_is_a_data_error_before_anything_is_sent() -> None:
    with CaptureQueriesContext(connection) as seen, pytest.raises(DataError):
        bulk.insert_rows(UncountedRun, COLUMNS, [row(duration_ms=2**63)])
    assert len(seen) == 0


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        bulk.insert_rows(UncountedRun, COLUMNS, [row(project_id="\ud800")])


def test_a_statement_alone_is_seen_by_whoever_counts_and_stops_in_a_broken_transaction() -> None:
    with CaptureQueriesContext(connection) as seen:
        bulk.insert_rows(UncountedRun, COLUMNS, [row(), row()])
    assert [query["sql"].split("(")[0] for query in seen.captured_queries] == ['INSERT INTO "run_uncounted" ']
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
        transaction.set_rollback(True)
        bulk.insert_rows(UncountedRun, COLUMNS, [row()])


def test_a_type_that_nobody_needed_yet_is_refused() -> None:
    with pytest.raises(KeyError):
        layout(("inet",))
