"""Rows as PostgreSQL's binary arrays, one for each column: what a statement unnests instead of reading text.

Reading the same rows as JSON was half of what the server needed for the writes of a run, and the driver's own arrays
are written value by value, through a dumper for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct, error
from typing import Any
from uuid import UUID

import orjson
from django.db import DataError
from psycopg.postgres import types

Column = Sequence[Any]
_Writer = Callable[[Column], list[bytes]]

# Dimensions, flags, type of the elements; length and lower bound of the only dimension.
_HEADER = Struct(">iiIii").pack
_LENGTH = Struct(">i").pack
_NULL = _LENGTH(-1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Columns:
    """The parameters of a statement that unnests arrays: their types, and what is sent."""

    types: tuple[int, ...]
    data: list[bytes]


@dataclass(frozen=True)
class Layout:
    """How rows of the same columns are written; `source` is what they are in a FROM clause, named v (c0 …)."""

    source: str
    types: tuple[int, ...]
    writers: list[tuple[int, _Writer]]

    def columns(self, rows: Sequence[Sequence[Any]]) -> Columns:
        """At least one row. DataError for a number that its column cannot hold."""
        count = len(rows)
        try:
            data = [
                _HEADER(1, 0, element, count, 1) + b"".join(write(column))
                for (element, write), column in zip(self.writers, zip(*rows, strict=True), strict=True)
            ]
        except error as refused:
            raise DataError(str(refused)) from refused
        return Columns(self.types, data)


@lru_cache(maxsize=256)
def layout(column_types: tuple[str, ...]) -> Layout:
    """The layout of columns of these types, as the database names them. KeyError for one that nobody needed yet."""
    known = [_WRITERS[name.partition("(")[0]] for name in column_types]
    infos = [(types[name], writer) for name, writer in known]
    names = [f"c{number}" for number in range(len(infos))]
    return Layout(
        f"(SELECT {', '.join(f'unnest(%s) AS {name}' for name in names)}) AS v",
        tuple(info.array_oid for info, _writer in infos),
        [(info.oid, writer) for info, writer in infos],
    )


def _numbers(form: str) -> _Writer:
    size = Struct(f">{form}").size
    pack = Struct(f">i{form}").pack
    return lambda column: [_NULL if value is None else pack(size, value) for value in column]


_integers = _numbers("i")


def _uuids(column: Column) -> list[bytes]:
    length = _LENGTH(16)
    return [
        _NULL if value is None else length + (value if type(value) is UUID else UUID(value)).int.to_bytes(16)
        for value in column
    ]


def _texts(column: Column) -> list[bytes]:
    return [_NULL if value is None else _LENGTH(len(data := value.encode())) + data for value in column]


def _times(column: Column) -> list[bytes]:
    return [_NULL if value is None else _time(value) for value in column]


@lru_cache(maxsize=1024)
def _time(value: datetime) -> bytes:
    return _LENGTH(8) + ((value - _EPOCH) // _MICROSECOND).to_bytes(8, signed=True)


def _days(column: Column) -> list[bytes]:
    first = _EPOCH.toordinal()
    return _integers([None if value is None else value.toordinal() - first for value in column])


def _documents(column: Column) -> list[bytes]:
    return _texts([None if value is None else "\1" + json_text(value) for value in column])


def json_text(value: Any) -> str:
    """As the framework writes it but for spaces; what is beyond the fast writer is left to the slow one."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


# By the name of a column's type: what it is called among types, and how its values are written. A length is left to the
# column itself, which refuses what is too long; a cast would cut it off.
_WRITERS: dict[str, tuple[str, _Writer]] = {
    "smallint": ("int2", _numbers("h")),
    "integer": ("int4", _integers),
    "bigint": ("int8", _numbers("q")),
    "boolean": ("bool", _numbers("?")),
    "uuid": ("uuid", _uuids),
    "varchar": ("varchar", _texts),
    "text": ("text", _texts),
    "timestamp with time zone": ("timestamptz", _times),
    "date": ("date", _days),
    "jsonb": ("jsonb", _documents),
}
