"""Set-based reads and writes for the hot paths: many rows, one statement, on both engines.

The ORM's own bulk update was more than half of the cost of a run in measurements; these helpers are the only raw
writes in the house. Table and column names come from models, values are always parameters.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, TypeVar
from uuid import UUID

import orjson
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import (
    BooleanField,
    CharField,
    DateField,
    DateTimeField,
    Field,
    ForeignKey,
    IntegerField,
    JSONField,
    Model,
    TextField,
    UUIDField,
)
from django.db.models.base import ModelState

from apps.core import ids
from apps.core.rounds import Rounds

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
    shape = _shape(model, tuple(columns), vendor())
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
    shape = _shape(model, tuple(columns), vendor())
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
    shape = _shape(model, (*keys, *columns), vendor())
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
    fields = _fields(model, (*keys, *columns))
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


def _execute(sql: str, params: Sequence[Any]) -> Callable[[], list[Any]]:
    """Sends a statement; what it returns gives the rows it answered, as they were at that moment."""
    if _open.rounds is not None:
        return _open.rounds.add(sql, params)
    wrapper = connections[DEFAULT_DB_ALIAS]
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
    pk = model._meta.pk
    return lambda: {pk.to_python(row[0]) for answer in answers for row in answer()}


@lru_cache(maxsize=256)
def _fields(model: type[Model], columns: tuple[str, ...]) -> list[Field[Any, Any]]:
    by_attname = {field.attname: field for field in model._meta.concrete_fields}
    return [by_attname[name] for name in columns]


@dataclass(frozen=True)
class _Shape:
    """What is known of rows with the same columns; a field's own hash is slow, so all of it is looked up at once.

    `insert` has a place for the values. `prepare` are the columns that are not written as they are, by position.
    """

    insert: str
    names: list[str]
    typed: str
    prepare: list[tuple[int, Callable[[Any], Any]]]


@lru_cache(maxsize=256)
def _shape(model: type[Model], columns: tuple[str, ...], vendor: str) -> _Shape:
    fields = _fields(model, columns)
    named = ", ".join(f'"{field.column}"' for field in fields)
    body = "VALUES {}" if vendor == "sqlite" else "SELECT * FROM {}"
    names = [f"c{index}" for index in range(len(fields))]
    found = [(index, _preparer(field, vendor)) for index, field in enumerate(fields)]
    return _Shape(
        f'INSERT INTO "{model._meta.db_table}" ({named}) {body}',
        names,
        ", ".join(f"{name} {_type(field)}" for name, field in zip(names, fields, strict=True)),
        [(index, prepare) for index, prepare in found if prepare is not None],
    )


def _values(shape: _Shape, rows: Sequence[Sequence[Any]]) -> list[tuple[str, list[Any]]]:
    """The rows as SQL, in batches: `(?, ?), …` on SQLite; on PostgreSQL one JSON text, read as typed rows.

    The driver writes arrays value by value in Python, which cost a session more than the server's reading of JSON.
    """
    prepared = [list(row) for row in rows]
    for index, prepare in shape.prepare:
        for values in prepared:
            if values[index] is not None:
                values[index] = prepare(values[index])
    if vendor() == "sqlite":
        one = "(" + ", ".join(["%s"] * len(shape.names)) + ")"
        return [
            (", ".join([one] * len(batch)), [value for values in batch for value in values])
            for batch in (prepared[i : i + _SQLITE_ROWS] for i in range(0, len(prepared), _SQLITE_ROWS))
        ]
    if not prepared:
        return []
    records = [dict(zip(shape.names, values, strict=True)) for values in prepared]
    return [(f"json_to_recordset(%s::json) AS v({shape.typed})", [orjson.dumps(records).decode()])]


def _preparer(field: Field[Any, Any], vendor: str) -> Callable[[Any], Any] | None:
    """How a value of the column is written, None where as it is: Django's own way, without its layers."""
    target = field.target_field if isinstance(field, ForeignKey) else field
    if isinstance(target, CharField | TextField | IntegerField | BooleanField):
        return None
    if vendor == "postgresql" and isinstance(target, UUIDField | DateField | JSONField):
        return None  # a DateTimeField is a DateField; all as JSON has them
    if isinstance(target, UUIDField):
        return _uuid_text
    if isinstance(target, DateTimeField):
        return _time_text
    if isinstance(target, JSONField) and target.encoder is None:
        return _json_text
    return lambda value: field.get_db_prep_save(value, connection)


def _uuid_text(value: UUID | str) -> str:
    return _hex(value if isinstance(value, UUID) else UUID(value))


@lru_cache(maxsize=4096)
def _hex(value: UUID) -> str:
    return value.hex


@lru_cache(maxsize=4096)
def _uuid(text: str) -> UUID:
    return UUID(text)


def _time_text(value: datetime) -> str:
    return (value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat(" ").removesuffix("+00:00")


def _json_text(value: Any) -> str:
    """As the framework writes it but for spaces; what is beyond the fast writer is left to the slow one."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def _type(field: Field[Any, Any]) -> str:
    found = field.db_type(connection)
    assert found is not None
    return found


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
    names, columns, converters = _columns(model, vendor())
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
    condition, prepare = _membership(model, column, vendor())
    return condition, [prepare(values)]


@lru_cache(maxsize=128)
def _membership(model: type[Model], column: str, vendor: str) -> tuple[str, Callable[[Iterable[Any]], Any]]:
    """The condition, and how the values are written."""
    (field,) = _fields(model, (column,))
    of_ids = isinstance(field.target_field if isinstance(field, ForeignKey) else field, UUIDField)
    if vendor == "sqlite":
        ready = _uuid_text if of_ids else lambda value: field.get_db_prep_value(value, connection)
        return (
            f'"{field.column}" IN (SELECT value FROM json_each(%s))',
            lambda values: json.dumps([ready(value) for value in values]),
        )
    if of_ids:
        # Written here: nothing in it needs quoting.
        return (
            f'"{field.column}" = ANY(%s::uuid[])',
            lambda values: f"{{{','.join([_canonical(value) for value in values])}}}",
        )
    return (
        f'"{field.column}" = ANY(%s::{_type(field)}[])',
        lambda values: [field.get_db_prep_value(value, connection) for value in values],
    )


def _canonical(value: UUID | str) -> str:
    return ids.text(value if isinstance(value, UUID) else UUID(value))


@lru_cache(maxsize=64)
def _columns(
    model: type[Model], vendor: str
) -> tuple[list[str], str, list[tuple[int, Callable[[Any], Any]]]]:
    fields = model._meta.concrete_fields
    table = model._meta.db_table
    found = [(index, _reader(field, table, vendor)) for index, field in enumerate(fields)]
    converters = [(index, convert) for index, convert in found if convert is not None]
    return (
        [field.attname for field in fields],
        ", ".join(f'"{table}"."{field.column}"' for field in fields),
        converters,
    )


def _reader(field: Field[Any, Any], table: str, vendor: str) -> Callable[[Any], Any] | None:
    """How a value of the column is read, None where as it comes: Django's own way, without its layers."""
    target = field.target_field if isinstance(field, ForeignKey) else field
    if vendor == "sqlite" and isinstance(target, UUIDField):
        return lambda value: None if value is None else _uuid(value)
    if vendor == "sqlite" and isinstance(target, DateTimeField):
        return lambda value: None if value is None else value.replace(tzinfo=UTC)
    expression = field.get_col(table)
    functions = [*connection.ops.get_db_converters(expression), *expression.get_db_converters(connection)]
    if not functions:
        return None

    def convert(value: Any) -> Any:
        for function in functions:
            value = function(value, expression, connection)
        return value

    return convert
