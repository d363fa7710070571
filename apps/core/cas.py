"""Compare-and-set: a write counts only while the row still is what its writer read (architecture.md §4)."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from apps.core.errors import VersionConflict


def update(queryset: QuerySet[Any], *, version: int, by: int = 1, **values: Any) -> int:
    """Writes `values` to the one row at `version`, raises its version by `by` and returns the new one.

    Raises VersionConflict, with the current version where the row exists.
    """
    changed = queryset.filter(version=version).update(version=version + by, **values)
    if changed == 1:
        return version + by
    raise VersionConflict(queryset.values_list("version", flat=True).first())
