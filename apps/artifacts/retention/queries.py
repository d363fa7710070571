"""What pages and the API read of retention."""

from __future__ import annotations

from datetime import date
from typing import Any

from apps.artifacts.models import RetentionReceipt
from apps.core import pages
from apps.core.pages import Page


def _day(value: Any) -> date:
    return date.fromisoformat(value)


_NEWEST_FIRST = (pages.Key("day", descending=True, read=_day), pages.identifier(descending=True))


def receipts(
    project_id: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> Page[RetentionReceipt]:
    """The bills of a project (empty = of the instance), the newest day first."""
    return pages.paginate(
        RetentionReceipt.objects.filter(project_id=project_id),
        _NEWEST_FIRST,
        kind="retention-receipts",
        scope={"project": project_id},
        limit=limit,
        cursor=cursor,
    )
