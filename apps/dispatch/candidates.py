"""Which runs may be carried next (runs.md §6.1, architecture.md §9).

Conditions are literals, so that both engines use the partial index over candidates. The dispatch loop locks
what it takes; the paged list is the same rule without locks.

Runs that need certain labels stand apart in that index, by their need: a worker without labels never meets them,
and one with labels asks for each need that it fits, not for each run (`Needs`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import connection

from apps.core import bulk, clock
from apps.core.errors import InvalidInput
from apps.runs.models import Run, RunAttempt
from apps.tasks import placement

MAX_PAGE = 64
MAX_NEEDS = 16
_ELIGIBLE = (
    "r.execution_owner = 'runtime' AND r.status IN ('queued', 'dispatching')"
    " AND r.cancel_requested_at IS NULL AND r.holds_place"
)
_FREE = (
    "a.status = 'claimed' AND (l.attempt_id IS NULL OR l.status = 'released'"
    " OR (l.status = 'leased' AND l.expires_at <= %s))"
)
# Two questions instead of one with OR: asked together, PostgreSQL would look at every attempt that waits.
_BEST = " ORDER BY r.priority DESC, r.queued_at, r.id LIMIT %s"
_ORDERED = "SELECT r.priority, r.queued_at, r.id FROM runs r WHERE r.execution_owner = 'runtime'"
_OPEN = " AND r.cancel_requested_at IS NULL AND r.holds_place"
_QUEUED = f"{_ORDERED} AND r.status = 'queued'{_OPEN} AND r.requires = ''{_BEST}"
_WAITING = (
    "SELECT 1 FROM runs r WHERE r.execution_owner = 'runtime' AND r.status = 'queued'"
    f"{_OPEN} AND r.requires = '' AND r.queued_at <= %s LIMIT 1"
)
_QUEUED_NEEDING = f"{_ORDERED} AND r.status = 'queued'{_OPEN} AND r.requires = %s{_BEST}"
_RECLAIMED = (
    f"{_ORDERED} AND r.status = 'dispatching'{_OPEN} AND {{fits}} AND EXISTS ("
    "SELECT 1 FROM run_attempts a LEFT JOIN run_dispatch_leases l ON l.attempt_id = a.id"
    # The offset keeps PostgreSQL from turning the question round and looking at every attempt that waits.
    f" WHERE a.run_id = r.id AND {_FREE} LIMIT 1 OFFSET 0){_BEST}"
)
# From need to need through the index, past however many runs have each.
_NEXT = (
    "SELECT r.requires FROM runs r WHERE r.execution_owner = 'runtime' AND r.status = 'queued'"
    f"{_OPEN} AND r.requires > {{after}} ORDER BY r.requires LIMIT 1"
)
_NONE = "''"
_NEEDS = (
    f"WITH RECURSIVE needs(need) AS (SELECT ({_NEXT.format(after=_NONE)}) UNION ALL"
    f" SELECT ({_NEXT.format(after='n.need')}) FROM needs n WHERE n.need IS NOT NULL)"
    " SELECT need FROM needs WHERE need IS NOT NULL UNION SELECT r.requires FROM runs r"
    f" WHERE r.execution_owner = 'runtime' AND r.status = 'dispatching'{_OPEN} AND r.requires > ''"
)
_LIST = (
    "SELECT r.id, a.id, r.project_id, r.task_id, r.task_revision, r.priority, r.queued_at, a.created_at,"
    " a.executor_type FROM runs r JOIN run_attempts a ON a.run_id = r.id"
    f" LEFT JOIN run_dispatch_leases l ON l.attempt_id = a.id WHERE {_ELIGIBLE} AND {_FREE}"
)
_ORDER = " ORDER BY r.priority DESC, r.queued_at, a.created_at, a.id LIMIT %s"
_AFTER = (
    " AND (r.priority < %s OR (r.priority = %s AND (r.queued_at > %s OR (r.queued_at = %s"
    " AND (a.created_at > %s OR (a.created_at = %s AND a.id > %s))))))"
)


@dataclass(frozen=True)
class Candidate:
    """One attempt that waits for a worker; the last four values of its order make its cursor."""

    run_id: UUID
    attempt_id: UUID
    project_id: str
    task_id: UUID
    task_revision: str
    priority: int
    queued_at: datetime
    attempt_created_at: datetime
    executor_type: str

    @property
    def position(self) -> tuple[int, datetime, datetime, UUID]:
        """Where the next page begins."""
        return (self.priority, self.queued_at, self.attempt_created_at, self.attempt_id)


class Needs:
    """Which needs that runs wait with one worker fits; kept from pass to pass, so that asking costs no round."""

    def __init__(self, offered: Mapping[str, str]) -> None:
        """`offered` are the worker's labels."""
        self._offered = offered
        self._known: set[str] = set()
        self.fitting: tuple[str, ...] = ()

    def look_later(self) -> Callable[[], bool]:
        """Looks for what runs need just now; the answer is whether a need came up that was not known before.

        Nothing is asked for a worker without labels: it fits none.
        """
        if not self._offered:
            return lambda: False
        found = bulk.select_values_later(_NEEDS, [])

        def learn() -> bool:
            fitting = [need for need in found() if placement.fits(need, self._offered)]
            before, self._known = self._known, set(fitting)
            # Beyond that many at once they take turns.
            self.fitting = tuple(random.sample(fitting, min(len(fitting), MAX_NEEDS)))
            return not self._known <= before

        return learn


def take(now: datetime, limit: int, needs: Sequence[str] = ()) -> list[UUID]:
    """Ids of the best candidates that no other session holds, locked until the transaction ends.

    `needs` are those that the worker fits besides having none. The lease that follows has the last word: a lock
    that came too late costs a refused claim, never a second one.
    """
    return take_later(now, limit, needs)()


def take_later(now: datetime, limit: int, needs: Sequence[str] = ()) -> Callable[[], list[UUID]]:
    """The same, with the answer when it is called for."""
    lock = " FOR NO KEY UPDATE OF r SKIP LOCKED" if connection.vendor == "postgresql" else ""
    asked = [
        bulk.select_later(_QUEUED + lock, [limit]),
        bulk.select_later(_RECLAIMED.format(fits=_fits(needs)) + lock, [*needs, _time(now), limit]),
        *(bulk.select_later(_QUEUED_NEEDING + lock, [need, limit]) for need in needs),
    ]

    def best() -> list[UUID]:
        rows = [row for answer in asked for row in answer()]
        found = [(-priority, queued_at, _uuid(pk)) for priority, queued_at, pk in rows]
        return [pk for _priority, _queued_at, pk in sorted(found)[:limit]]

    return best


def waiting(needs: Sequence[str], before: datetime) -> bool:
    """Whether a run waits that has one of `needs`, or one without any that was queued before `before`."""
    asked = [bulk.select_later(_QUEUED_NEEDING, [need, 1]) for need in needs]
    asked.append(bulk.select_later(_WAITING, [_time(before)]))
    asked.append(bulk.select_later(_RECLAIMED.format(fits=_fits(needs)), [*needs, _time(clock.now()), 1]))
    return any(answer() for answer in asked)


def page(
    now: datetime, *, after: tuple[int, datetime, datetime, UUID] | None = None, limit: int = MAX_PAGE
) -> list[Candidate]:
    """Candidates in the order in which they are taken; `limit` is 1–64."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput.field("limit", f"A whole number from 1 to {MAX_PAGE}.")
    sql, params = _LIST, [_time(now)]
    if after is not None:
        priority, queued_at, created_at, attempt_id = after
        queued, created = _time(queued_at), _time(created_at)
        sql += _AFTER
        params += [priority, priority, queued, queued, created, created]
        params.append(RunAttempt._meta.pk.get_db_prep_value(attempt_id, connection))
    with connection.cursor() as cursor:
        cursor.execute(sql + _ORDER, [*params, limit])
        return [_candidate(row) for row in cursor.fetchall()]


def _fits(needs: Sequence[str]) -> str:
    return f"r.requires IN ({', '.join(['%s'] * len(needs))}, '')" if needs else "r.requires = ''"


def _candidate(row: Any) -> Candidate:
    return Candidate(
        _uuid(row[0]), _uuid(row[1]), row[2], _uuid(row[3]), row[4], row[5], _moment(row[6]), _moment(row[7]),
        row[8],
    )  # fmt: skip


def _time(at: datetime) -> Any:
    return Run._meta.get_field("queued_at").get_db_prep_value(at, connection)


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


def _moment(value: datetime) -> datetime:
    # SQLite hands out what Django stored, in UTC but without saying so.
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
