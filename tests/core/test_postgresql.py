"""A kept connection to PostgreSQL is looked at before it is used again; one that is dead is replaced."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest
from django.core.signals import request_started
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.postgresql import base

from apps.core.listener import _listen

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """What the server answered to Django's own question."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite's connection is a file")
    answers: list[bool] = []
    ask = base.DatabaseWrapper.is_usable

    def note(self: base.DatabaseWrapper) -> bool:
        answers.append(ask(self))
        return answers[-1]

    monkeypatch.setattr(base.DatabaseWrapper, "is_usable", note)
    connection.ensure_connection()
    yield answers
    connection.close()


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def begin_request() -> None:
    """What Django does with its connections at the begin of each request."""
    kept = connections[DEFAULT_DB_ALIAS]
    request_started.send(sender=None)
    assert kept.health_check_enabled and not kept.health_check_done


def terminate(pid: int) -> None:
    other = _listen("control")
    try:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    finally:
        other.close()


def test_a_connection_that_stands_is_not_asked(asked: list[bool]) -> None:
    pid = backend()
    begin_request()
    assert backend() == pid and asked == []


def test_one_that_the_server_closed_is_replaced(asked: list[bool]) -> None:
    pid = backend()
    terminate(pid)
    begin_request()
    assert backend() != pid and asked == [False]


def test_one_that_is_closed_on_our_side_is_replaced(asked: list[bool]) -> None:
    pid = backend()
    connection.connection.close()
    begin_request()
    assert backend() != pid and asked == []


def test_one_with_something_to_read_is_asked_and_kept(asked: list[bool]) -> None:
    pid = backend()
    with connection.cursor() as cursor:
        cursor.execute('LISTEN "qinglong_runs"')
    teller = _listen("control")
    try:
        teller.execute("SELECT pg_notify('qinglong_runs', '')")
    finally:
        teller.close()
    assert select.select([connection.connection], [], [], 5)[0]
    begin_request()
    assert backend() == pid and asked == [True]


def test_one_that_failed_is_asked(asked: list[bool]) -> None:
    pid = backend()
    with pytest.raises(Exception, match="no_such_table"), connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM no_such_table")
    assert connections[DEFAULT_DB_ALIAS].errors_occurred
    request_started.send(sender=None)
    assert backend() == pid and asked == [True]
