"""How values of columns are written and read on both engines: the framework's own way, without its layers.

A field's hash is slow, and so is asking one what it wants of each value; what is known of columns is looked up at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import (
    BooleanField,
    CharField,
    DateTimeField,
    Field,
    ForeignKey,
    IntegerField,
    JSONField,
    Model,
    TextField,
    UUIDField,
)

from apps.core import ids
from apps.core.arrays import Layout, json_text, layout


@lru_cache(maxsize=256)
def fields_of(model: type[Model], columns: tuple[str, ...]) -> list[Field[Any, Any]]:
    """The fields of attribute names (`run_id`)."""
    by_attname = {field.attname: field for field in model._meta.concrete_fields}
    return [by_attname[name] for name in columns]


@dataclass(frozen=True)
class Shape:
    """What is known of rows that are written with the same columns.

    `insert` has a place for the values. `prepare` are the columns that SQLite is not given as they are, by position;
    `layout` is how PostgreSQL is given them.
    """

    insert: str
    width: int
    prepare: list[tuple[int, Callable[[Any], Any]]]
    layout: Layout | None


@lru_cache(maxsize=256)
def shape_of(model: type[Model], columns: tuple[str, ...], vendor: str) -> Shape:
    """The shape of rows with these attribute names."""
    fields = fields_of(model, columns)
    named = ", ".join(f'"{field.column}"' for field in fields)
    head = f'INSERT INTO "{model._meta.db_table}" ({named}) '
    if vendor == "postgresql":
        return Shape(
            head + "SELECT * FROM {}", len(fields), [], layout(tuple(_type(field) for field in fields))
        )
    found = [(index, _preparer(field)) for index, field in enumerate(fields)]
    return Shape(
        head + "VALUES {}",
        len(fields),
        [(index, prepare) for index, prepare in found if prepare is not None],
        None,
    )


def _target(field: Field[Any, Any]) -> Any:
    """The field that says what the values are."""
    return field.target_field if isinstance(field, ForeignKey) else field


def _preparer(field: Field[Any, Any]) -> Callable[[Any], Any] | None:
    """How SQLite is given a value of the column, None where as it is: Django's own way, without its layers."""
    target = _target(field)
    if isinstance(target, CharField | TextField | IntegerField | BooleanField):
        return None
    if isinstance(target, UUIDField):
        return _uuid_text
    if isinstance(target, DateTimeField):
        return _time_text
    if isinstance(target, JSONField) and target.encoder is None:
        return json_text
    return lambda value: field.get_db_prep_save(value, connection)


def _uuid_text(value: UUID | str) -> str:
    # Not remembered: to hash an id takes as long as to write it.
    return f"{(value if type(value) is UUID else _uuid(str(value))).int:032x}"


@lru_cache(maxsize=4096)
def _uuid(text: str) -> UUID:
    return UUID(text)


@lru_cache(maxsize=1024)
def _time_text(value: datetime) -> str:
    return (value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat(" ").removesuffix("+00:00")


def _type(field: Field[Any, Any]) -> str:
    found = field.db_type(connection)
    assert found is not None
    return found


@lru_cache(maxsize=128)
def membership(model: type[Model], column: str, vendor: str) -> tuple[str, Callable[[Iterable[Any]], Any]]:
    """The condition, and how the values are written."""
    (field,) = fields_of(model, (column,))
    of_ids = isinstance(_target(field), UUIDField)
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
    return ids.text(value if isinstance(value, UUID) else _uuid(value))


@lru_cache(maxsize=64)
def columns_of(
    model: type[Model], vendor: str
) -> tuple[list[str], str, list[tuple[int, Callable[[Any], Any]]]]:
    """Names of all columns, how they are asked for, and by position how those are read that do not come as they are."""
    fields = model._meta.concrete_fields
    table = model._meta.db_table
    found = [(index, _reader(field, table, vendor)) for index, field in enumerate(fields)]
    converters = [(index, convert) for index, convert in found if convert is not None]
    return (
        [field.attname for field in fields],
        ", ".join(f'"{table}"."{field.column}"' for field in fields),
        converters,
    )


@lru_cache(maxsize=64)
def key_reader(model: type[Model], vendor: str) -> Callable[[Any], Any] | None:
    """How a primary key is read, None where as it comes."""
    return _reader(model._meta.pk, model._meta.db_table, vendor)


def _reader(field: Field[Any, Any], table: str, vendor: str) -> Callable[[Any], Any] | None:
    """How a value of the column is read, None where as it comes: Django's own way, without its layers."""
    target = _target(field)
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
