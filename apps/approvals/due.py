"""What may be picked up now, over all projects, a keyset page at a time (approvals.md §5, §7.2).

A position is a time and a dispatch's id; pages go on strictly behind it. Listing takes nothing: claiming decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from apps.approvals import values
from apps.approvals.errors import InvalidApprovedActionExecution, InvalidApprovedActionRecovery
from apps.approvals.models import ApprovedActionExecution, ApprovedActionRecoveryControl
from apps.core import bulk, db, pages
from apps.core.errors import DomainError

MAX_PAGE = 64
Position = tuple[datetime, str]

_EXECUTIONS = ApprovedActionExecution._meta.db_table
_CONTROLS = ApprovedActionRecoveryControl._meta.db_table
_ANYTHING = (
    f'SELECT EXISTS (SELECT 1 FROM "{_EXECUTIONS}" WHERE eligible_at <= %s'
    " AND status IN ('pending', 'leased', 'retry_wait'))"
    f' OR EXISTS (SELECT 1 FROM "{_CONTROLS}" c JOIN "{_EXECUTIONS}" e ON e.dispatch_id = c.dispatch_id'
    " WHERE c.status IN ('armed', 'leased') AND c.next_scan_at <= %s"
    " AND e.status = 'executing' AND e.lease_expires_at <= %s)"
)

logger = logging.getLogger("qinglong.approvals")


@dataclass(frozen=True)
class Due:
    """Ids of dispatches in order; `next` leads on and is set exactly where there was more."""

    dispatch_ids: list[str]
    next: Position | None

    @property
    def truncated(self) -> bool:
        """Whether more is due than the page holds."""
        return self.next is not None


@dataclass
class Report:
    """What a page came to; counts only, nothing of any action."""

    scanned: int = 0
    claimed: int = 0
    unavailable: int = 0
    truncated: bool = False
    next_cursor: Position | None = None

    def go_through(self, found: Due, move: Callable[[str], None]) -> None:
        """Counts one page while `move` takes each in turn; one that fails does not stop the others."""
        self.truncated, self.next_cursor = found.truncated, found.next
        for dispatch_id in found.dispatch_ids:
            self.scanned += 1
            try:
                move(dispatch_id)
            except DomainError as error:
                self.unavailable += 1
                logger.warning("an approved action could not be moved on: %s", error.code)


def executions(now: datetime, limit: int, after: Position | None = None) -> Due:
    """Pending, retried and abandoned executions, the longest eligible first; raises InvalidApprovedActionExecution."""
    values.whole("limit", limit, 1, MAX_PAGE, InvalidApprovedActionExecution)
    rows = ApprovedActionExecution.objects.filter(
        eligible_at__lte=now, status__in=["pending", "leased", "retry_wait"]
    )
    return _page(rows, "eligible_at", limit, after)


def controls(now: datetime, limit: int, after: Position | None = None) -> Due:
    """Executions whose holder's time ran out behind the barrier; raises InvalidApprovedActionRecovery."""
    values.whole("limit", limit, 1, MAX_PAGE, InvalidApprovedActionRecovery)
    rows = ApprovedActionRecoveryControl.objects.filter(
        status__in=["armed", "leased"],
        next_scan_at__lte=now,
        dispatch__status="executing",
        dispatch__lease_expires_at__lte=now,
    )
    return _page(rows, "next_scan_at", limit, after)


def anything(now: datetime) -> bool:
    """Whether there is work for a cycle: one statement, two probes of an index where there is none."""
    at = db.moment(now)
    (row,) = bulk.select_later(_ANYTHING, [at, at, at])()
    return bool(row[0])


def _page(rows: QuerySet[Any], key: str, limit: int, after: Position | None) -> Due:
    order = (pages.moment(key), pages.Key("pk"))
    if after is not None:
        rows = rows.filter(pages.after(order, list(after)))
    found = list(rows.order_by(key, "pk").values_list(key, "pk")[: limit + 1])
    taken = found[:limit]
    return Due([pk for _at, pk in taken], taken[-1] if len(found) > limit else None)
