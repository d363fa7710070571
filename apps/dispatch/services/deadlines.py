"""Attempts whose time is over become requests to stop (runs.md §7.6).

The shim keeps the limit itself, session or none. This is for when it cannot, frozen say: the request is on record,
whatever lives delivers it, and the end is `timed_out` whoever came first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apps.core import clock, db, wakeups
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput
from apps.core.streams import Actor
from apps.runs.models import Run, RunAttempt
from apps.runs.services import cancel, places

PAGE = 32
MAX_PAGE = 128
ACTOR = Actor("reconciler", "deadline")

Position = tuple[datetime, UUID]


@dataclass(frozen=True)
class Overdue:
    """A started attempt of a run that nobody has asked to stop, behind its deadline."""

    run_id: UUID
    attempt_id: UUID
    deadline_at: datetime


@dataclass(frozen=True)
class OverduePage:
    """`next_cursor` is there only where more follows."""

    items: tuple[Overdue, ...]
    truncated: bool
    next_cursor: Position | None


def list_overdue(now: datetime, *, after: Position | None = None, limit: int = PAGE) -> OverduePage:
    """Overdue attempts, the longest first; `limit` is 1–128. Raises InvalidInput."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput.field("limit", f"A whole number from 1 to {MAX_PAGE}.")
    rows = RunAttempt.objects.filter(
        status__in=["starting", "running"],
        deadline_at__lte=now,
        run__execution_owner="runtime",
        run__status__in=["dispatching", "running"],
        run__cancel_requested_at__isnull=True,
    )
    if after is not None:
        rows = rows.filter(deadline_at__gte=after[0]).exclude(deadline_at=after[0], pk__lte=after[1])
    ordered = rows.order_by("deadline_at", "pk").values_list("run_id", "pk", "deadline_at")
    found = [Overdue(run, pk, at) for run, pk, at in ordered[: limit + 1] if at is not None]
    truncated = len(found) > limit
    del found[limit:]
    cursor = (found[-1].deadline_at, found[-1].attempt_id) if truncated else None
    return OverduePage(tuple(found), truncated, cursor)


@write_transaction
def request_timeouts(after: Position | None = None, limit: int = PAGE) -> Position | None:
    """Asks for the stop of one page of overdue attempts; returns where the next page begins, None behind the last."""
    now = clock.now()
    page = list_overdue(now, after=after, limit=limit)
    ids = [item.run_id for item in page.items]
    if not ids:
        return None
    places.lock_tasks(Run.objects.filter(pk__in=ids).values_list("task_id", flat=True))
    runs = {run.pk: run for run in db.lock(Run.objects.filter(pk__in=ids).order_by("pk"))}
    # What ended while its row was waited for is over.
    still = {item.run_id for item in list_overdue(now, after=after, limit=limit).items}
    cancel.cancel_locked([run for pk, run in runs.items() if pk in still], "timeout", now, ACTOR)
    wakeups.ring(cancel.CLUSTER)
    return page.next_cursor
