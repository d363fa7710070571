"""Transactions and the few things the two engines do differently (architecture.md §2, §4)."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.models import QuerySet

from apps.core import participants
from apps.core.errors import Busy
from apps.core.rounds import StatementsForgotten

P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q", bound=QuerySet[Any])

TRIES = 5
_RETRIED_STATES = frozenset({"40001", "40P01", "55P03", StatementsForgotten.sqlstate})
_state = threading.local()


def is_postgresql() -> bool:
    """Whether the database is PostgreSQL; the only other one is SQLite."""
    return connection.vendor == "postgresql"


def clock_skew_ms() -> int:
    """How far this machine's clock is ahead of the database server's; 0 on SQLite, which has none of its own."""
    if not is_postgresql():
        return 0
    with connection.cursor() as cursor:
        before = time.time()
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        (server,) = cursor.fetchone()
        middle = (before + time.time()) / 2
    return round((middle - float(server)) * 1000)


def moment(at: datetime) -> Any:
    """A time as a parameter of a statement that is written by hand."""
    return connection.ops.adapt_datetimefield_value(at)


# Plans by indexes, made once per statement and connection.
_BY_INDEX = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c enable_material=off -c jit=off -c plan_cache_mode=force_generic_plan"
    # A session that is frozen amid a transaction would keep its rows locked, and hold up whoever takes over from it.
    " -c idle_in_transaction_session_timeout=10s"
)


def plan_by_index() -> None:
    """Has this process reach rows of PostgreSQL through indexes, whatever the planner takes the tables for.

    For processes whose statements each touch a handful of rows of known keys. Of tables that have just grown the
    planner knows nothing yet and reads them whole, for every pass: half of what a run cost the server.
    A transaction of such a process that stands idle for ten seconds is ended.
    """
    options = connection.settings_dict["OPTIONS"]
    given = options.get("options", "")
    if is_postgresql() and _BY_INDEX not in given:
        options["options"] = f"{given} {_BY_INDEX}".strip()
        connection.close()


def columns() -> set[tuple[str, str]]:
    """Table and column of everything the database holds; one query."""
    sql = (
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = ANY (current_schemas(false))"
        if is_postgresql()
        else "SELECT made.name, one.name FROM sqlite_master made, pragma_table_info(made.name) one"
        " WHERE made.type = 'table'"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return {(str(table), str(column)) for table, column in cursor.fetchall()}


def write_transaction(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a service function one transaction.

    Joins the transaction of a calling service. The outermost one opens it (IMMEDIATE on SQLite), runs the
    participants as the last thing before commit, and tries up to five times on a busy database or a
    serialisation failure, waiting 1, 2, 4, 8 ms; then it raises `Busy`. The function must therefore not touch
    anything but the database.
    """
    return _transaction(function, yielding=False)


def yielding_transaction(function: Callable[P, R]) -> Callable[P, R]:
    """As `write_transaction`, for batches that nobody waits for: it reads without SQLite's one writer.

    The function takes the writer (`take_writer`) when all is read and only writes are left. Where anybody wrote since
    it began, or is about to, the whole is tried again, so what was read holds; the last try takes the writer first,
    as a write transaction does. On PostgreSQL, which locks rows, it is a write transaction.
    """
    return _transaction(function, yielding=True)


def _transaction(function: Callable[P, R], *, yielding: bool) -> Callable[P, R]:
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if getattr(_state, "open", False):
            return function(*args, **kwargs)
        nested = connection.in_atomic_block
        for attempt in range(TRIES):
            late = yielding and (is_postgresql() or attempt < TRIES - 1)
            begin = _deferred if late and not nested and not is_postgresql() else transaction.atomic
            try:
                return _once(begin, late, function, *args, **kwargs)
            except OperationalError as error:
                if nested or not is_busy(error):
                    raise
                if attempt == TRIES - 1:
                    raise Busy from error
                time.sleep(0.001 * 2**attempt)
        raise AssertionError("unreachable")

    return run


def _once(
    begin: Callable[[], AbstractContextManager[None]],
    late: bool,
    function: Callable[P, R],
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    _state.open, _state.since, _state.held = True, None, 0.0
    participants.begin()
    try:
        with begin():
            if not late:
                _state.since = time.monotonic()
            result = function(*args, **kwargs)
            participants.settle()
            _state.open = False  # what runs after the commit opens transactions of its own
        _state.held = holding()
        return result
    finally:
        _state.open, _state.since = False, None


@contextmanager
def _deferred() -> Iterator[None]:
    """A transaction on SQLite that takes the writer with its first write."""
    connection.ensure_connection()
    own: Any = connection
    usual, own.transaction_mode = own.transaction_mode, "DEFERRED"
    try:
        with transaction.atomic():
            own.transaction_mode = usual
            yield
    finally:
        own.transaction_mode = usual


def take_writer() -> None:
    """From here on a yielding transaction keeps other writers out; an OperationalError has it tried again."""
    if getattr(_state, "since", None) is not None:
        return
    if not is_postgresql():
        with connection.cursor() as cursor:
            # Changes nothing, yet SQLite wants the writer for it.
            cursor.execute("UPDATE django_migrations SET name = name WHERE 0")
    _state.since = time.monotonic()


def holding() -> float:
    """For how many seconds the open transaction has kept others out: since it began, or since it took the writer.

    On PostgreSQL that is what it does behind its locks and all that it read.
    """
    since = getattr(_state, "since", None)
    return 0.0 if since is None else time.monotonic() - since


def last_held() -> float:
    """The same of this thread's last transaction, its commit included."""
    return float(getattr(_state, "held", 0.0))


@contextmanager
def savepoint() -> Iterator[None]:
    """A nested block whose database error leaves the transaction usable, for expected unique violations."""
    with transaction.atomic():
        yield


def is_busy(error: DatabaseError) -> bool:
    """Whether trying the whole transaction again may help."""
    state = getattr(error.__cause__, "sqlstate", None)
    if state is not None:
        return state in _RETRIED_STATES
    text = str(error)
    return "database is locked" in text or "database table is locked" in text


def is_unique_violation(error: IntegrityError) -> bool:
    """Whether a row with the same key was there first."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state == "23505" if state is not None else "UNIQUE constraint failed" in str(error)


def lock(queryset: Q) -> Q:
    """The same rows, locked until the transaction ends; on SQLite the write transaction excludes all others."""
    return queryset.select_for_update(no_key=True) if is_postgresql() else queryset


def keep_writers_out(tables: Iterable[str]) -> None:
    """Nobody writes to these tables until the transaction ends, and whoever has written to them has ended.

    `tables` are names from our own models, never input. On SQLite every write transaction does that.
    """
    if is_postgresql():
        names = ", ".join(f'"{table}"' for table in sorted(tables))
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")


def lock_shared(table: str, column: str, value: str) -> None:
    """Keeps one row from being changed until the transaction ends, without excluding other readers.

    `table` and `column` are names from our own models, never input.
    """
    if is_postgresql():
        with connection.cursor() as cursor:
            cursor.execute(f'SELECT 1 FROM "{table}" WHERE "{column}" = %s FOR SHARE', [value])


def skip_locked(queryset: Q) -> Q:
    """Locks the rows that nobody else holds and leaves the others out; on SQLite all rows."""
    return queryset.select_for_update(skip_locked=True, no_key=True) if is_postgresql() else queryset


def notify(channel: str) -> None:
    """Wakes listeners of `channel` when the open transaction commits; PostgreSQL only, else nothing."""
    if is_postgresql():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [channel])


def share_rows(table: str, column: str, values: Iterable[str], *, wait: bool) -> set[str]:
    """As `lock_shared` for many rows, taken in their order; without `wait` only those that nobody holds.

    Returns the values whose rows are kept; on SQLite all of them.
    """
    wanted = set(values)
    if not is_postgresql() or not wanted:
        return wanted
    free = "" if wait else " SKIP LOCKED"
    with connection.cursor() as cursor:
        cursor.execute(
            f'SELECT "{column}" FROM "{table}" WHERE "{column}" = ANY(%s) ORDER BY "{column}" FOR SHARE{free}',
            [sorted(wanted)],
        )
        return {row[0] for row in cursor.fetchall()}
