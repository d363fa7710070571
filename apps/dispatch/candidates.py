"""Which runs may be carried next (runs.md §6.1, architecture.md §9).

Conditions are literals, so that both engines use the partial index over candidates. The dispatch loop locks
what it takes; the paged list is the same rule without locks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import connection

from apps.core import bulk
from apps.core.errors import InvalidInput
from apps.runs.models import Run, RunAttempt

MAX_PAGE = 64
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
_QUEUED = f"{_ORDERED} AND r.status = 'queued' AND r.cancel_requested_at IS NULL AND r.holds_place{_BEST}"
_RECLAIMED = (
    f"{_ORDERED} AND r.status = 'dispatching' AND r.cancel_requested_at IS NULL AND r.holds_place AND EXISTS ("
    "SELECT 1 FROM run_attempts a LEFT JOIN run_dispatch_leases l ON l.attempt_id = a.id"
    # The offset keeps PostgreSQL from turning the question round and looking at every attempt that waits.
    f" WHERE a.run_id = r.id AND {_FREE} LIMIT 1 OFFSET 0){_BEST}"
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


def take(now: datetime, limit: int) -> list[UUID]:
    """Ids of the best candidates that no other session holds, locked until the transaction ends.

    The lease that follows has the last word: a lock that came too late costs a refused claim, never a second one.
    """
    return take_later(now, limit)()


def take_later(now: datetime, limit: int) -> Callable[[], list[UUID]]:
    """The same, with the answer when it is called for."""
    lock = " FOR NO KEY UPDATE OF r SKIP LOCKED" if connection.vendor == "postgresql" else ""
    queued = bulk.select_later(_QUEUED + lock, [limit])
    reclaimed = bulk.select_later(_RECLAIMED + lock, [_time(now), limit])

    def best() -> list[UUID]:
        found = [(-priority, queued_at, _uuid(pk)) for priority, queued_at, pk in [*queued(), *reclaimed()]]
        return [pk for _priority, _queued_at, pk in sorted(found)[:limit]]

    return best


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
