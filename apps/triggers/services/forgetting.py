"""Old rules and switches are kept as long as somebody may ask why something did not run, and no longer.

People write these rows, so there are few: looking through them once an hour needs no index and no cursor.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet

from apps.core import bulk, clock
from apps.core.db import write_transaction
from apps.triggers.models import Switch, TriggerRevision

BATCH = 500
_AXES = (("enabled", "disabled"), ("archived", "restored"))


def horizon() -> datetime:
    """Before this nobody asks any more: the history of runs is folded there too."""
    return clock.now() - timedelta(milliseconds=settings.RETENTION.history_ms)


@write_transaction
def forget_rules() -> int:
    """Removes up to BATCH revisions of triggers that were replaced, or whose trigger was deleted, before the horizon.

    What was in force at the horizon stays. Returns how many went.
    """
    before = horizon()
    newer = TriggerRevision.objects.filter(
        trigger_id=OuterRef("trigger_id"), version__gt=OuterRef("version"), created_at__lte=before
    )
    gone = TriggerRevision.objects.filter(Q(deleted=True) | Exists(newer), created_at__lte=before)
    return _delete(TriggerRevision, gone)


@write_transaction
def forget_switches() -> int:
    """The same for when tasks and projects were switched on and off, archived and restored."""
    before = horizon()
    gone = 0
    for states in _AXES:
        rows = Switch.objects.filter(state__in=states, created_at__lte=before)
        later = rows.filter(project_id=OuterRef("project_id"), id__gt=OuterRef("id"))
        for replaced in (
            rows.filter(Exists(later.filter(task_id=OuterRef("task_id"))), task_id__isnull=False),
            rows.filter(Exists(later.filter(task_id__isnull=True)), task_id__isnull=True),
        ):
            gone += _delete(Switch, replaced)
    return gone


def _delete(model: type[Any], rows: QuerySet[Any]) -> int:
    chosen: Iterable[Any] = list(rows.order_by("id").values_list("id", flat=True)[:BATCH])
    bulk.delete_rows(model, "id", chosen)
    return len(list(chosen))
