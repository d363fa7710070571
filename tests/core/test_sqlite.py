"""How a write transaction waits for SQLite's one writer (qinglong/sqlite)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from qinglong.sqlite import base

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL locks rows"),
]


@pytest.fixture
def writer() -> Iterator[sqlite3.Connection]:
    """Somebody else who holds the writer."""
    other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


def patience_ms() -> int:
    with connection.cursor() as cursor:
        return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])


@pytest.mark.parametrize("eager_s", [5.0, 0.0])
def test_it_begins_when_the_writer_is_free(
    writer: sqlite3.Connection, monkeypatch: Any, eager_s: float
) -> None:
    """Also where it is SQLite that waits in the end; and then nobody else can write."""
    monkeypatch.setattr(base, "EAGER_S", eager_s)
    before = patience_ms()
    release = threading.Timer(0.05, lambda: writer.execute("COMMIT"))
    release.start()
    with transaction.atomic():
        release.join()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.execute("PRAGMA busy_timeout = 0")
            writer.execute("BEGIN IMMEDIATE")
    assert patience_ms() == before == 20_000
    writer.execute("BEGIN IMMEDIATE")


def test_who_waits_too_long_is_told_and_can_go_on(writer: sqlite3.Connection, monkeypatch: Any) -> None:
    monkeypatch.setattr(base, "EAGER_S", 0.01)
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.05)
    with pytest.raises(OperationalError, match="locked"), transaction.atomic():
        raise AssertionError("the writer was held")
    writer.execute("COMMIT")
    with transaction.atomic():
        pass
    assert patience_ms() == 50
    connection.close()
