"""Control jobs: short repeated housekeeping, one flight at a time over all nodes (architecture.md §2).

A job is a function that takes its cursor and returns the next one (None keeps it). It is bounded (< 30 s),
idempotent, and passes ids only. Its row says when it is due and who is at it; a crash leaves a lease that
expires, an error is counted and logged and the job is tried again later.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.core import bulk, clock, db, ids, leases
from apps.core.db import write_transaction
from apps.core.models import ControlJob

LEASE_MS = 60_000
JOB_MAX = timedelta(seconds=30)
BACKOFF_MAX = timedelta(hours=1)
# A job that will be due in a moment goes along with those that are: so they come to have one ring, not one each.
EARLY_MS = 1_000

Cursor = dict[str, Any]
Function = Callable[[Cursor], Cursor | None]

logger = logging.getLogger("qinglong.control")


@dataclass(frozen=True)
class Job:
    """A registered job; `every_ms` is the pause from its end to its next start.

    `busy_ms` is the pause where the cursor it returned says `busy`: it had to stop and there is more to do.
    """

    name: str
    function: Function
    every_ms: int
    busy_ms: int | None = None


_jobs: dict[str, Job] = {}


def register(name: str, function: Function, every_ms: int, busy_ms: int | None = None) -> None:
    """Makes a job known to every process; called when an app is made ready. Pauses are at least 1000."""
    if min(every_ms, busy_ms or every_ms) < 1000:
        raise ValueError("a control job runs at most once a second")
    _jobs[name] = Job(name, function, every_ms, busy_ms)


def jobs() -> list[Job]:
    """All registered jobs, by name."""
    return [_jobs[name] for name in sorted(_jobs)]


def enrol(now: datetime) -> None:
    """Gives each registered job that has none its row, due at once."""
    known = bulk.select_values_later(f'SELECT name FROM "{ControlJob._meta.db_table}"')()
    if missing := sorted(_jobs.keys() - set(known)):
        _enrol(missing, now)


@write_transaction
def _enrol(names: list[str], now: datetime) -> None:
    ControlJob.objects.bulk_create(
        [ControlJob(name=name, due_at=now) for name in names], ignore_conflicts=True
    )


def due(now: datetime) -> list[str]:
    """Names of the registered jobs that are due and in nobody's hands, the longest waiting first.

    Where one is due, those that nearly are come along.
    """
    ahead = max((_early(job) for job in _jobs.values()), default=timedelta(0))
    free = bulk.select_rows(
        ControlJob,
        "due_at <= %s AND (lease_expires_at IS NULL OR lease_expires_at <= %s)",
        [db.moment(now + ahead), db.moment(now)],
        order="due_at, name",
    )
    found = [(row.name, row.due_at) for row in free if row.name in _jobs]
    if not found or found[0][1] > now:
        return []
    return [name for name, at in found if at <= now + _early(_jobs[name])]


def soon(name: str) -> None:
    """Makes a job due now; with a ring of its cluster in the same transaction it is done at once.

    One that is at it just now keeps its pause: what it did not see any more waits for its next round.
    """
    now = clock.now()
    ControlJob.objects.filter(name=name, due_at__gt=now).update(due_at=now)


def due_condition(now: datetime) -> tuple[str, list[Any]]:
    """Whether any registered job is due and in nobody's hands, as SQL: a part of a larger question."""
    names, at = sorted(_jobs), db.moment(now)
    return (
        f'EXISTS (SELECT 1 FROM "{ControlJob._meta.db_table}" WHERE due_at <= %s'
        " AND (lease_expires_at IS NULL OR lease_expires_at <= %s)"
        f" AND name IN ({', '.join(['%s'] * len(names)) or 'NULL'}))",
        [at, at, *names],
    )


def under_way(now: datetime) -> bool:
    """Whether somebody is at a job that was begun less than JOB_MAX ago; a longer one is taken for stuck."""
    return ControlJob.objects.filter(lease_expires_at__gt=now, last_started_at__gt=now - JOB_MAX).exists()


def run_due(now: datetime) -> int:
    """Runs every due job that nobody else took first, and returns how many ended well."""
    owner = ids.token(12)
    return sum(_run(_jobs[name], owner) for name in due(now))


def _early(job: Job) -> timedelta:
    return timedelta(milliseconds=min(EARLY_MS, job.every_ms // 5))


def _run(job: Job, owner: str) -> bool:
    held = _claim(job.name, owner)
    if held is None:
        return False
    cursor: Cursor | None = None
    failed = False
    try:
        cursor = job.function(dict(held.subject.cursor))
    except Exception as error:
        failed = True
        # Where, and of which type, but not the message: it may quote the value it choked on.
        where = traceback.extract_tb(error.__traceback__)[-1]
        logger.error(
            "control job %s failed: %s at %s:%s", job.name, type(error).__name__, where.filename, where.lineno
        )
    _settle(job, held, cursor, failed)
    return not failed


@write_transaction
def _claim(name: str, owner: str) -> leases.Claim[ControlJob] | None:
    now = clock.now()
    by = db.moment(now + _early(_jobs[name]))
    rows = bulk.select_rows(ControlJob, "name = %s AND due_at <= %s", [name, by])
    held = leases.claim(rows, owner, LEASE_MS, now, also={"last_started_at": now})
    return held[0] if held else None


@write_transaction
def _settle(job: Job, held: leases.Claim[ControlJob], cursor: Cursor | None, failed: bool) -> None:
    now = clock.now()
    failures = held.subject.failures + 1 if failed else 0
    busy = job.busy_ms is not None and cursor is not None and cursor.get("busy")
    pause = timedelta(milliseconds=job.busy_ms if busy and job.busy_ms else job.every_ms)
    if failed:
        pause = min(pause * 2 ** min(failures, 10), max(BACKOFF_MAX, pause))
    settled = {
        "due_at": now + pause,
        "last_finished_at": now,
        "failures": failures,
        "cursor": held.subject.cursor if cursor is None else cursor,
    }
    leases.release([held], also=settled)
