"""Set-based reads and writes for the hot paths: many rows, one statement, on both engines.

The ORM's own bulk update was more than half of the cost of a run in measurements; these helpers are the only raw
writes in the house. Table and column names come from models, values are always parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import Model
from django.db.models.base import ModelState

from apps.core.arrays import Columns
from apps.core.columns import Shape, columns_of, fields_of, key_reader, membership, shape_of
from apps.core.rounds import Params, Rounds

M = TypeVar("M", bound=Model)

_SQLITE_ROWS = 200


class _Open(threading.local):
    rounds: Rounds | None = None


_open = _Open()


@contextmanager
def together() -> Iterator[None]:
    """Lets the statements of the block travel together and their answers come back together, on PostgreSQL.

    For the functions of this module only: what the ORM asks meanwhile goes before what waits. Whoever wants an
    answer asks the `…_later` functions and calls what they return, after the last statement of a round.
    """
    if vendor() != "postgresql":
        yield
        return
    connection.ensure_connection()
    _open.rounds = rounds = Rounds(connections[DEFAULT_DB_ALIAS])
    try:
        yield
        rounds.send()
    finally:
        _open.rounds = None


@cache
def vendor() -> str:
    """The engine's name, without a look through the framework's proxies."""
    return connection.vendor


def insert_rows(model: type[Model], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Inserts all rows; `columns` are attribute names (`run_id`). Nothing happens for no rows."""
    shape = shape_of(model, tuple(columns), vendor())
    for values, params in _values(shape, rows):
        _execute(shape.insert.format(values), params)


def insert_or_update(
    model: type[Model], columns: Sequence[str], rows: Sequence[Sequence[Any]], conflict: str
) -> set[Any]:
    """Inserts rows with an `ON CONFLICT …` clause of the caller's own making; the primary keys it wrote."""
    return insert_or_update_later(model, columns, rows, conflict)()


def insert_or_update_later(
    model: type[Model], columns: Sequence[str], rows: Sequence[Sequence[Any]], conflict: str
) -> Callable[[], set[Any]]:
    """The same, with the answer when it is called for."""
    shape = shape_of(model, tuple(columns), vendor())
    tail = f' {conflict} RETURNING "{model._meta.pk.column}"'
    return _keys(
        model,
        [_execute(shape.insert.format(values) + tail, params) for values, params in _values(shape, rows)],
    )


def update_rows(
    model: type[Model],
    keys: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    condition: str = "",
    increment: str = "",
) -> set[Any]:
    """Updates each row whose `keys` equal the given values and returns the primary keys that were changed.

    A row of `rows` holds the values of `keys`, then those of `columns`. `condition` is a literal SQL condition
    over the table (alias t) and the given values (v.c0 …); literals keep partial indexes usable. `increment` names
    a column that each row raises by one.
    """
    return update_rows_later(model, keys, columns, rows, condition, increment)()


def update_rows_later(
    model: type[Model],
    keys: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    condition: str = "",
    increment: str = "",
) -> Callable[[], set[Any]]:
    """The same, with the answer when it is called for."""
    if not rows:
        return set
    shape = shape_of(model, (*keys, *columns), vendor())
    before, after = _update_sql(model, tuple(keys), tuple(columns), condition, increment, vendor())
    return _keys(
        model, [_execute(before + values + after, params) for values, params in _values(shape, rows)]
    )


@lru_cache(maxsize=128)
def _update_sql(
    model: type[Model],
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    condition: str,
    increment: str,
    vendor: str,
) -> tuple[str, str]:
    """The statement before and after its values."""
    table, pk = model._meta.db_table, model._meta.pk.column
    fields = fields_of(model, (*keys, *columns))
    names = [f"c{index}" for index in range(len(fields))]
    sets = ", ".join(f'"{fields[n].column}" = v.{names[n]}' for n in range(len(keys), len(fields)))
    if increment:
        sets += f', "{increment}" = t."{increment}" + 1'
    where = " AND ".join(f't."{fields[n].column}" = v.{names[n]}' for n in range(len(keys)))
    if condition:
        where += f" AND {condition}"
    if vendor == "sqlite":
        return (
            f"WITH v({', '.join(names)}) AS (VALUES ",
            f') UPDATE "{table}" AS t SET {sets} FROM v WHERE {where} RETURNING "{pk}"',
        )
    return (f'UPDATE "{table}" AS t SET {sets} FROM ', f' WHERE {where} RETURNING t."{pk}"')


def _execute(sql: str, params: Params) -> Callable[[], list[Any]]:
    """Sends a statement; what it returns gives the rows it answered, as they were at that moment."""
    if _open.rounds is not None:
        return _open.rounds.add(sql, params)
    wrapper = connections[DEFAULT_DB_ALIAS]
    if isinstance(params, Columns):
        # The driver's cursors know nothing of them. Alone, nobody would try again what was prepared and is forgotten.
        wrapper.ensure_connection()
        alone = Rounds(wrapper, prepares=False)
        answer = alone.add(sql, params)
        alone.send()
        return answer
    if vendor() == "sqlite" and not (wrapper.queries_logged or wrapper.execute_wrappers):
        wrapper.ensure_connection()
        with wrapper.wrap_database_errors:
            # SQLite would read on while later statements change what is read.
            rows = wrapper.connection.execute(_marked(sql), params).fetchall()
        return lambda: rows
    cursor = wrapper.cursor()
    cursor.execute(sql, params)
    if vendor() == "postgresql":
        return lambda: list(cursor.fetchall())
    rows = cursor.fetchall()
    return lambda: rows


@lru_cache(maxsize=1024)
def _marked(sql: str) -> str:
    """With the marks of SQLite's driver; the framework looks for them anew in each statement."""
    return sql.replace("%s", "?").replace("%%", "%")


def _keys(model: type[Model], answers: list[Callable[[], list[Any]]]) -> Callable[[], set[Any]]:
    read = key_reader(model, vendor())
    if read is None:
        return lambda: {row[0] for answer in answers for row in answer()}
    return lambda: {read(row[0]) for answer in answers for row in answer()}


def _values(shape: Shape, rows: Sequence[Sequence[Any]]) -> list[tuple[str, Params]]:
    """The rows as SQL: `(?, ?), …` on SQLite, in batches; on PostgreSQL one array for each column."""
    if not rows:
        return []
    if shape.layout is not None:
        return [(shape.layout.source, shape.layout.columns(rows))]
    prepared = [list(row) for row in rows]
    for index, prepare in shape.prepare:
        for values in prepared:
            if values[index] is not None:
                values[index] = prepare(values[index])
    one = "(" + ", ".join(["%s"] * shape.width) + ")"
    return [
        (", ".join([one] * len(batch)), [value for values in batch for value in values])
        for batch in (prepared[i : i + _SQLITE_ROWS] for i in range(0, len(prepared), _SQLITE_ROWS))
    ]


def select_rows(
    model: type[M], where: str, params: Sequence[Any] = (), *, order: str = "", lock: bool = False
) -> list[M]:
    """Rows of a literal condition over the table, as instances; with `lock` until the transaction ends.

    Spares the hot paths the ORM's compiler, which costs them more than the database does.
    """
    return select_rows_later(model, where, params, order=order, lock=lock)()


def select_rows_later(
    model: type[M], where: str, params: Sequence[Any] = (), *, order: str = "", lock: bool = False
) -> Callable[[], list[M]]:
    """The same, with the answer when it is called for."""
    names, columns, converters = columns_of(model, vendor())
    sql = f'SELECT {columns} FROM "{model._meta.db_table}" WHERE {where}'
    if order:
        sql += f" ORDER BY {order}"
    if lock and vendor() == "postgresql":
        sql += " FOR NO KEY UPDATE"
    answer = _execute(sql, list(params))

    def read() -> list[M]:
        rows = [list(row) for row in answer()]
        for index, convert in converters:
            for row in rows:
                row[index] = convert(row[index])
        return [_instance(model, names, row) for row in rows]

    return read


def _instance(model: type[M], names: Sequence[str], values: Sequence[Any]) -> M:
    """A stored row as an instance, the way one comes out of a pickle: without defaults, descriptors and signals."""
    state = ModelState()
    state.db, state.adding = DEFAULT_DB_ALIAS, False
    made = model.__new__(model)
    made.__dict__ = {"_state": state, **dict(zip(names, values, strict=True))}
    return made


def select_later(sql: str, params: Sequence[Any] = ()) -> Callable[[], list[Any]]:
    """The rows of a query as the driver gives them, when it is called for."""
    return _execute(sql, list(params))


def select_values_later(sql: str, params: Sequence[Any] = ()) -> Callable[[], list[Any]]:
    """The first column of a query, when it is called for."""
    answer = _execute(sql, list(params))
    return lambda: [row[0] for row in answer()]


def delete_rows(model: type[Model], column: str, values: Iterable[Any]) -> None:
    """Deletes the rows whose column holds one of `values`; only where no other table points at them."""
    where, params = among(model, column, values)
    _execute(f'DELETE FROM "{model._meta.db_table}" WHERE {where}', params)


def among(model: type[Model], column: str, values: Iterable[Any]) -> tuple[str, list[Any]]:
    """The condition that a column holds one of `values`, in a text that does not depend on how many there are."""
    condition, prepare = membership(model, column, vendor())
    return condition, [prepare(values)]
