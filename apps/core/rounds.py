"""Rounds of statements to PostgreSQL: sent in one piece, answered in one piece.

The driver's own pipeline asks the operating system twice for each statement, and each goes through a cursor of its
own. A pass of the dispatch loop sends about twenty statements in three rounds; that was a third of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import adapters as own_adapters
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.postgres import types as own_types
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from apps.core.arrays import Columns

Rows = list[tuple[Any, ...]]
Params = Sequence[Any] | Columns
_Taker = Callable[[Rows], None]
_names = count()


class StatementsForgotten(psycopg.OperationalError):
    """The driver dropped all prepared statements, as it does after a rollback: the transaction is tried again."""

    sqlstate = "26000"


class _Server:
    """What is known of one connection: its prepared statements, and how its values are read."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.prepared: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self.adapters = AdaptersMap(connection.adapters)
        # The framework's own loader works in Python and comes to the same on connections that speak UTC.
        oid = own_types["timestamptz"].oid
        loader = own_adapters.get_loader(oid, Format.TEXT)
        assert loader is not None
        self.adapters.register_loader(oid, loader)

    def prepare(self, sql: str, types: tuple[int, ...]) -> tuple[bytes, _Taker]:
        """A name for a statement, and whom to tell that the server has it."""
        name = f"_ql_{next(_names)}".encode()

        def keep(_rows: Rows) -> None:
            self.prepared[sql, types] = name

        return name, keep


_servers: WeakKeyDictionary[psycopg.Connection[Any], _Server] = WeakKeyDictionary()


class Rounds:
    """What waits to be sent on one connection, and how it is answered."""

    def __init__(self, wrapper: BaseDatabaseWrapper, *, prepares: bool = True) -> None:
        self._wrapper = wrapper
        self._connection: psycopg.Connection[Any] = wrapper.connection
        self._server = _servers.get(self._connection) or _Server(self._connection)
        _servers[self._connection] = self._server
        self._values = Transformer(self._server.adapters)
        # Inside a savepoint the transaction could not be tried again, should the driver drop what is prepared.
        self._prepares = prepares and not wrapper.savepoint_ids
        self._waiting: list[_Answer] = []

    def add(self, sql: str, params: Params) -> Callable[[], Rows]:
        """Takes a statement with `%s` for each value; what it returns gives the rows, and sends all that waits."""
        answer = _Answer(self, sql, params)
        self._waiting.append(answer)
        return answer

    def send(self) -> None:
        """Sends what waits and takes the answers; raises the first error among them."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._wrapper.validate_no_broken_transaction()
        if self._wrapper.queries_logged:
            self._wrapper.queries_log.extend({"sql": one.sql, "time": "0"} for one in waiting)
        with self._wrapper.wrap_database_errors, self._connection.lock:
            self._exchange(waiting)

    def _exchange(self, waiting: Sequence[_Answer]) -> None:
        pgconn = self._connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            takers = self._write(pgconn, waiting)
            pgconn.pipeline_sync()
            results = self._connection.wait(_communicate(pgconn))
        finally:
            if pgconn.status == ConnStatus.OK:
                pgconn.exit_pipeline_mode()
        for take, result in zip(takers, results, strict=True):
            take(self._rows(result))

    def _write(self, pgconn: PGconn, waiting: Sequence[_Answer]) -> list[_Taker]:
        """Hands everything to libpq, and returns who takes each answer."""
        takers: list[_Taker] = []
        if not self._connection.autocommit and pgconn.transaction_status == TransactionStatus.IDLE:
            pgconn.send_query_params(b"BEGIN", None)
            takers.append(lambda _rows: None)
        for one in waiting:
            types, formats, values = self._dumped(one.params)
            if not self._prepares:
                pgconn.send_query_params(_query(one.sql), values, types, formats)
            else:
                if (name := self._server.prepared.get((one.sql, types))) is None:
                    name, keep = self._server.prepare(one.sql, types)
                    pgconn.send_prepare(name, _query(one.sql), types)
                    takers.append(keep)
                pgconn.send_query_prepared(name, values, formats)
            takers.append(one.take)
        return takers

    def _dumped(self, params: Params) -> tuple[tuple[int, ...], Sequence[Format] | None, Sequence[Any]]:
        """Types, formats and what is sent."""
        if isinstance(params, Columns):
            return params.types, [Format.BINARY] * len(params.types), params.data
        values = self._values.dump_sequence(params, [PyFormat.AUTO] * len(params))
        return self._values.types or (), self._values.formats, values

    def _rows(self, result: PGresult) -> Rows:
        if result.status == ExecStatus.TUPLES_OK:
            self._values.set_pgresult(result)
            return self._values.load_rows(0, result.ntuples, tuple)
        if result.status == ExecStatus.COMMAND_OK:
            return []
        error = error_from_result(result)
        if error.sqlstate == StatementsForgotten.sqlstate:
            self._server.prepared.clear()
            raise StatementsForgotten from error
        raise error


class _Answer:
    """One statement, and its rows once they are there."""

    __slots__ = ("_rounds", "_rows", "params", "sql")

    def __init__(self, rounds: Rounds, sql: str, params: Params) -> None:
        self._rounds = rounds
        self._rows: Rows | None = None
        self.sql = sql
        self.params = params

    def take(self, rows: Rows) -> None:
        self._rows = rows

    def __call__(self) -> Rows:
        if self._rows is None:
            self._rounds.send()
        assert self._rows is not None
        return self._rows


def _communicate(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Sends what libpq holds and reads up to the end of the round."""
    results: list[PGresult] = []
    unsent = pgconn.flush() == 1
    while True:
        ready = yield Wait.RW if unsent else Wait.R
        if ready & Ready.R:
            pgconn.consume_input()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    continue  # between two statements
                if result.status == ExecStatus.PIPELINE_SYNC:
                    return results
                results.append(result)
        if unsent:
            unsent = pgconn.flush() == 1


@cache
def _query(sql: str) -> bytes:
    first, *rest = sql.split("%s")
    return (first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))).encode()
