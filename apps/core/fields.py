"""Columns and rules that many tables share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import models
from django.db.models import Q

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
