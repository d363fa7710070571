"""Set-based writes for the hot paths: many rows, one statement, on both engines.

The ORM's own bulk update was more than half of the cost of a run in measurements; these two helpers are the
only raw writes in the house. Table and column names come from models, values are always parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.db import connection
from django.db.models import Field, Model

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
    prepared = [
        [field.get_db_prep_save(value, connection) for field, value in zip(fields, row, strict=True)]
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


def _array_type(field: Field[Any, Any]) -> str:
    return f"{field.db_type(connection)}[]"
