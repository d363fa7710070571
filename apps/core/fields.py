"""Columns and rules that many tables share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Length
from django.db.models.lookups import Exact, LessThanOrEqual

from apps.core import clock, ids

MAX_VERSION = 2_147_483_647


class IdField(models.UUIDField):  # type: ignore[type-arg]  # not generic at run time
    """A UUIDv7 primary key."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"primary_key": True, "default": ids.uuid7, "editable": False, **options})


def created_at() -> Any:
    """When the row was made; in whole milliseconds."""
    return models.DateTimeField(default=clock.now, editable=False)


def one_of(column: str, values: Iterable[str], name: str) -> models.CheckConstraint:
    """The rule that a column holds one of the values (null passes)."""
    return models.CheckConstraint(condition=Q(**{f"{column}__in": list(values)}), name=name)


def at_least(column: str, least: int, name: str) -> models.CheckConstraint:
    """The rule that a number is not below `least` (null passes)."""
    return models.CheckConstraint(condition=Q(**{f"{column}__gte": least}), name=name)


def not_before(later: str, earlier: str, name: str) -> models.CheckConstraint:
    """The rule that one time is not before another (null passes)."""
    return models.CheckConstraint(condition=Q(**{f"{later}__gte": models.F(earlier)}), name=name)


class Elapsed(Func):
    """Milliseconds from one time to a later one, in words that a constraint may use on either engine."""

    arity = 2
    output_field = models.BigIntegerField()

    def as_sql(self, compiler: Any, connection: Any, *_args: Any, **_context: Any) -> Any:
        # Plain SQL: a function of Django's own would make the table unreadable to everything else on SQLite.
        (later, some), (earlier, more) = (compiler.compile(part) for part in self.get_source_expressions())
        if connection.vendor == "postgresql":
            return f"(EXTRACT(EPOCH FROM ({later} - {earlier})) * 1000)", (*some, *more)
        days = f"julianday({later}) - julianday({earlier})"
        return f"CAST(ROUND(({days}) * 86400000) AS INTEGER)", (*some, *more)


def within(later: str, earlier: str, ms: int | str, name: str) -> models.CheckConstraint:
    """The rule that `later` is at most so many milliseconds after `earlier`; `ms` may name a column (null passes)."""
    bound = F(ms) if isinstance(ms, str) else ms
    return models.CheckConstraint(condition=LessThanOrEqual(Elapsed(F(later), F(earlier)), bound), name=name)


def long(column: str, length: int, name: str) -> models.CheckConstraint:
    """The rule that a text has exactly this many characters (null passes)."""
    return models.CheckConstraint(condition=Exact(Length(column), length), name=name)


def together(columns: Iterable[str], name: str) -> models.CheckConstraint:
    """The rule that these columns are all null or all set."""
    names = list(columns)
    return models.CheckConstraint(condition=absent(*names) | present(*names), name=name)


def absent(*columns: str) -> Q:
    """All of these are null."""
    return Q(**{f"{column}__isnull": True for column in columns})


def present(*columns: str) -> Q:
    """All of these are set."""
    return Q(**{f"{column}__isnull": False for column in columns})
