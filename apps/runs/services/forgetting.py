"""Records of starts that did not happen are kept as long as the history of runs."""

from __future__ import annotations

from datetime import datetime

from apps.core import bulk
from apps.core.db import write_transaction
from apps.runs.models import Skip

BATCH = 500


@write_transaction
def forget_skips(cutoff: datetime, limit: int = BATCH) -> list[tuple[str, datetime]]:
    """Removes up to `limit` records that were made, and whose due times all lay, before `cutoff`: project and time.

    One that still goes on stays.
    """
    # Ids rise with time: the oldest come first without an index of their own.
    columns = ("id", "project_id", "created_at", "open", "last_scheduled_for")
    rows = list(Skip.objects.order_by("id").values_list(*columns)[:limit])
    gone = [
        (pk, project_id, at)
        for pk, project_id, at, is_open, last in rows
        if not is_open and at <= cutoff and (last is None or last <= cutoff)
    ]
    bulk.delete_rows(Skip, "id", [pk for pk, _project_id, _at in gone])
    return [(project_id, at) for _pk, project_id, at in gone]
