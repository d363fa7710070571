"""Set-based reads and writes for the hot paths: many rows, one statement, on both engines.

The ORM's own bulk update was more than half of the cost of a run in measurements; these helpers are the only raw
writes in the house. Table and column names come from models, values are always parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import (
    BooleanField,
    CharField,
    DateTimeField,
    Field,
    ForeignKey,
    IntegerField,
    Model,
    TextField,
    UUIDField,
)

M = TypeVar("M", bound=Model)

_SQLITE_ROWS = 200


def insert_rows(model: type[Model], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Inserts all rows; `columns` are attribute names (`run_id`). Nothing happens for no rows."""
    insert_or_update(model, columns, rows)


def insert_or_update(
    model: type[Model], columns: Sequence[str], rows: Sequence[Sequence[Any]], conflict: str = ""
) -> set[Any]:
    """Inserts rows with an `ON CONFLICT …` clause of the caller's own making.

    Returns the primary keys that were written when a clause is given, else an empty set.
    """
    written: set[Any] = set()
    fields = _fields(model, tuple(columns))
    names = ", ".join(f'"{field.column}"' for field in fields)
    pk = model._meta.pk
    for values, params in _values(fields, rows):
        body = "VALUES " + values if connection.vendor == "sqlite" else f"SELECT * FROM {values}"
        if conflict and connection.vendor != "sqlite":
            body += " AS v"
        tail = f' {conflict} RETURNING "{pk.column}"' if conflict else ""
        with connection.cursor() as cursor:
            cursor.execute(f'INSERT INTO "{model._meta.db_table}" ({names}) {body}{tail}', params)
            if conflict:
                written.update(pk.to_python(row[0]) for row in cursor.fetchall())
    return written


def update_rows(
    model: type[Model],
    keys: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    condition: str = "",
    params: Sequence[Any] = (),
) -> set[Any]:
    """Updates each row whose `keys` equal the given values and returns the primary keys that were changed.

    A row of `rows` holds the values of `keys`, then those of `columns`. `condition` is a literal SQL condition
    over the table (alias t), with its own `params`; literals keep partial indexes usable.
    """
    changed: set[Any] = set()
    pk = model._meta.pk
    key_fields = _fields(model, tuple(keys))
    fields = key_fields + _fields(model, tuple(columns))
    names = [f"c{index}" for index in range(len(fields))]
    sets = ", ".join(
        f'"{field.column}" = v.{name}' for field, name in list(zip(fields, names, strict=True))[len(keys) :]
    )
    joins = " AND ".join(
        f't."{field.column}" = v.{name}' for field, name in zip(key_fields, names, strict=False)
    )
    where = f"{joins} AND {condition}" if condition else joins
    for values, value_params in _values(fields, rows):
        source = f"(VALUES {values})" if connection.vendor == "sqlite" else values
        with connection.cursor() as cursor:
            if connection.vendor == "sqlite":
                sql = (
                    f"WITH v({', '.join(names)}) AS {source} "
                    f'UPDATE "{model._meta.db_table}" AS t SET {sets} FROM v WHERE {where} '
                    f'RETURNING "{pk.column}"'
                )
            else:
                sql = (
                    f'UPDATE "{model._meta.db_table}" AS t SET {sets} FROM {source} AS v({", ".join(names)}) '
                    f'WHERE {where} RETURNING t."{pk.column}"'
                )
            cursor.execute(sql, [*value_params, *params])
            changed.update(pk.to_python(row[0]) for row in cursor.fetchall())
    return changed


@lru_cache(maxsize=256)
def _fields(model: type[Model], columns: tuple[str, ...]) -> list[Field[Any, Any]]:
    by_attname = {field.attname: field for field in model._meta.concrete_fields}
    return [by_attname[name] for name in columns]


def _values(fields: Sequence[Field[Any, Any]], rows: Sequence[Sequence[Any]]) -> list[tuple[str, list[Any]]]:
    """The rows as SQL, in batches: `(?, ?), …` on SQLite, one `unnest` over typed arrays on PostgreSQL."""
    if not rows:
        return []
    prepare = [_preparer(field, connection.vendor) for field in fields]
    prepared = [
        [
            value if ready is None or value is None else ready(value)
            for ready, value in zip(prepare, row, strict=True)
        ]
        for row in rows
    ]
    if connection.vendor == "sqlite":
        one = "(" + ", ".join(["%s"] * len(fields)) + ")"
        return [
            (", ".join([one] * len(batch)), [value for row in batch for value in row])
            for batch in (prepared[i : i + _SQLITE_ROWS] for i in range(0, len(prepared), _SQLITE_ROWS))
        ]
    casts = ", ".join(f"%s::{_array_type(field)}" for field in fields)
    return [(f"unnest({casts})", [list(column) for column in zip(*prepared, strict=True)])]


@lru_cache(maxsize=512)
def _preparer(field: Field[Any, Any], vendor: str) -> Callable[[Any], Any] | None:
    """How a value of the column is written, None where as it is: Django's own way, without its layers."""
    target = field.target_field if isinstance(field, ForeignKey) else field
    if isinstance(target, CharField | TextField | IntegerField | BooleanField):
        return None
    if isinstance(target, UUIDField):
        return None if vendor == "postgresql" else _uuid_text
    if isinstance(target, DateTimeField):
        return None if vendor == "postgresql" else _time_text
    return lambda value: field.get_db_prep_save(value, connection)


def _uuid_text(value: UUID | str) -> str:
    return value.hex if isinstance(value, UUID) else UUID(value).hex


def _time_text(value: datetime) -> str:
    return str(value.astimezone(UTC).replace(tzinfo=None))


def _array_type(field: Field[Any, Any]) -> str:
    return f"{field.db_type(connection)}[]"


def select_rows(
    model: type[M], where: str, params: Sequence[Any] = (), *, order: str = "", lock: bool = False
) -> list[M]:
    """Rows of a literal condition over the table, as instances; with `lock` until the transaction ends.

    Spares the hot paths the ORM's compiler, which costs them more than the database does.
    """
    names, columns, converters = _columns(model, connection.vendor)
    sql = f'SELECT {columns} FROM "{model._meta.db_table}" WHERE {where}'
    if order:
        sql += f" ORDER BY {order}"
    if lock and connection.vendor == "postgresql":
        sql += " FOR NO KEY UPDATE"
    with connection.cursor() as cursor:
        cursor.execute(sql, list(params))
        found = cursor.fetchall()
    rows = [list(row) for row in found]
    for index, expression, functions in converters:
        for row in rows:
            for function in functions:
                row[index] = function(row[index], expression, connection)
    return [model.from_db(connection.alias, names, row) for row in rows]


def delete_rows(model: type[Model], column: str, values: Iterable[Any]) -> None:
    """Deletes the rows whose column holds one of `values`; only where no other table points at them."""
    where, params = among(model, column, values)
    with connection.cursor() as cursor:
        cursor.execute(f'DELETE FROM "{model._meta.db_table}" WHERE {where}', params)


def among(model: type[Model], column: str, values: Iterable[Any]) -> tuple[str, list[Any]]:
    """The condition that a column holds one of `values`, in a text that does not depend on how many there are."""
    (field,) = _fields(model, (column,))
    prepared = [field.get_db_prep_value(value, connection) for value in values]
    if connection.vendor == "sqlite":
        return f'"{field.column}" IN (SELECT value FROM json_each(%s))', [json.dumps(prepared)]
    return f'"{field.column}" = ANY(%s::{_array_type(field)})', [prepared]


@lru_cache(maxsize=64)
def _columns(model: type[Model], _vendor: str) -> tuple[list[str], str, list[tuple[int, Any, list[Any]]]]:
    fields = model._meta.concrete_fields
    table = model._meta.db_table
    converters = []
    for index, field in enumerate(fields):
        expression = field.get_col(table)
        functions = [*connection.ops.get_db_converters(expression), *expression.get_db_converters(connection)]
        if functions:
            converters.append((index, expression, functions))
    return (
        [field.attname for field in fields],
        ", ".join(f'"{table}"."{field.column}"' for field in fields),
        converters,
    )
