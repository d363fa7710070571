"""Delivering a stop: claim it, tell the process outside any transaction, write down what came of it (runs.md §7).

Delivery is at least once, so that telling a process to stop must do no harm when it is repeated. A claim that its
session did not live to settle is taken again when its lease has run out.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from apps.core import bulk, clock, db
from apps.core.db import write_transaction
from apps.core.errors import Corrupt
from apps.core.streams import Actor
from apps.dispatch import cancellations
from apps.dispatch.cancellations import BLOCKING, RETRYABLE, Record
from apps.dispatch.errors import (
    CancellationBindingConflict,
    CancellationCommandInvalid,
    CancellationFenceRejected,
)
from apps.dispatch.models import RESULTS, RunCancellationDispatch, RunDispatchLease
from apps.runs.machine import Change
from apps.runs.models import ACTIVE_ATTEMPT, OPEN, Run, RunAttempt
from apps.runs.services import writes

LEASE_MS = 30_000
MAX_LEASE_MS = 300_000
MAX_DELAY_MS = 86_400_000
NOT_CALLED = frozenset({"controller_missing", "handle_missing"})
_COLUMNS = [
    "status", "version", "dispatch_count", "next_attempt_at", "lease_owner", "lease_token", "lease_expires_at",
    "last_result", "last_dispatched_at", "updated_at",
]  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """A stop that is to be delivered; `requested_at` is the wish as the caller read it."""

    run_id: UUID
    attempt_id: UUID
    requested_at: datetime


@dataclass(frozen=True)
class Claim:
    """`claimed`, or why not: `not_eligible`, `dispatched`, `blocked`, `leased`, `not_due`."""

    outcome: str
    record: Record | None = None
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Told:
    """What came of one delivery; `retry_delay_ms` (1–86,400,000) belongs to the results that are tried again."""

    run_id: UUID
    attempt_id: UUID
    expected_version: int
    result: str
    retry_delay_ms: int | None = None


def retry_delay_ms(count: int) -> int:
    """How long to wait after the `count`-th delivery: 1 s, doubled up to 60 s."""
    return int(min(60_000, 1_000 * 2 ** min(count - 1, 30)))


def claim(owner: str, wanted: Sequence[Wanted], *, token: str, lease_ms: int = LEASE_MS) -> dict[UUID, Claim]:
    """Takes the deliveries of distinct runs, by run id; `owner` is a worker place of the node that has the process.

    `token` has 1–128 characters, `lease_ms` is 1–300,000. Raises CancellationCommandInvalid before it looks,
    CancellationBindingConflict, Corrupt.
    """
    if not (1 <= len(owner) <= 128 and 1 <= len(token) <= 128 and 1 <= lease_ms <= MAX_LEASE_MS):
        raise CancellationCommandInvalid
    return _claim(owner, wanted, token, timedelta(milliseconds=lease_ms)) if wanted else {}


@write_transaction
def _claim(owner: str, wanted: Sequence[Wanted], token: str, lease: timedelta) -> dict[UUID, Claim]:
    now = clock.now()
    ids = [item.run_id for item in wanted]
    # Whoever holds the run's row alone decides about its delivery: two can neither make nor take it at once.
    runs = {run.pk: run for run in db.lock(Run.objects.filter(pk__in=ids).order_by("pk"))}
    attempts = RunAttempt.objects.in_bulk([item.attempt_id for item in wanted])
    leases = RunDispatchLease.objects.filter(attempt_id__in=list(attempts))
    places = dict(leases.values_list("attempt_id", "worker_id"))
    rows = {row.run_id: row for row in RunCancellationDispatch.objects.filter(pk__in=ids)}
    made: list[RunCancellationDispatch] = []
    taken: list[tuple[int, RunCancellationDispatch]] = []
    found: dict[UUID, Claim] = {}
    for item in wanted:
        run, attempt = runs.get(item.run_id), attempts.get(item.attempt_id)
        place = (attempt.worker_id or places.get(attempt.pk)) if attempt is not None else None
        if run is None or attempt is None or not _eligible(run, attempt, item) or not _near(owner, place):
            found[item.run_id] = Claim("not_eligible")
            continue
        row = rows.get(run.pk)
        if row is None:
            row = _new(item, now)
            made.append(row)
        cancellations.check(row)
        if row.attempt_id != attempt.pk:
            raise CancellationBindingConflict(run=str(run.pk), attempt=str(attempt.pk))
        if (outcome := _refusal(row, now)) is not None:
            found[run.pk] = Claim(outcome, cancellations.record_of(row))
            continue
        if row not in made:
            taken.append((row.version, row))
        row.status, row.version, row.dispatch_count = "leased", row.version + 1, row.dispatch_count + 1
        row.next_attempt_at, row.updated_at = None, now
        row.lease_owner, row.lease_token, row.lease_expires_at = owner, token, now + lease
        found[run.pk] = Claim("claimed", cancellations.record_of(row), token)
    columns = ["run_id", "attempt_id", "created_at", *_COLUMNS]
    bulk.insert_rows(
        RunCancellationDispatch, columns, [[getattr(row, name) for name in columns] for row in made]
    )
    _update(taken)
    return found


@write_transaction
def record(owner: str, token: str, told: Sequence[Told]) -> dict[UUID, Record]:
    """Writes down what came of deliveries that were claimed with this owner and token, one event each.

    That a lease has run out does not matter as long as nobody claimed anew. Raises CancellationCommandInvalid,
    CancellationFenceRejected or Corrupt; then nothing is stored.
    """
    for item in told:
        _check_result(item)
    now = clock.now()
    ids = [item.run_id for item in told]
    runs = {run.pk: run for run in db.lock(Run.objects.filter(pk__in=ids).order_by("pk"))}
    attempts = RunAttempt.objects.in_bulk([item.attempt_id for item in told])
    rows = {row.run_id: row for row in db.lock(RunCancellationDispatch.objects.filter(pk__in=ids))}
    changes: list[Change] = []
    settled: list[tuple[int, RunCancellationDispatch]] = []
    for item in told:
        row = rows.get(item.run_id)
        if row is None or not _holds(row, owner, token, item):
            raise CancellationFenceRejected(run=str(item.run_id))
        if item.run_id not in runs:
            raise Corrupt
        change = Change(runs[item.run_id], attempts[item.attempt_id])
        change.tell(
            _event(item.result),
            Actor("worker", owner),
            {
                "attempt_id": str(item.attempt_id),
                "dispatch_count": row.dispatch_count,
                "result": item.result,
            },
            f"cancel-dispatch:{item.attempt_id}:{row.dispatch_count}",
        )
        changes.append(change)
        settled.append((row.version, row))
        _settle(row, item, now)
    writes.write_locked(changes, now)()
    _update(settled)
    return {row.run_id: cancellations.record_of(row) for _version, row in settled}


def send_again(row: RunCancellationDispatch) -> None:
    """Makes a delivery that nobody has in hands due at once; the row is locked, the caller tells why."""
    cancellations.check(row)
    before = row.version
    row.status, row.version = "pending", before + 1
    row.next_attempt_at = row.updated_at = clock.now()
    _update([(before, row)])


def _eligible(run: Run, attempt: RunAttempt, item: Wanted) -> bool:
    return (
        run.execution_owner == "runtime"
        and run.status in OPEN
        and run.cancel_requested_at == item.requested_at
        and attempt.run_id == run.pk
        and attempt.status in ACTIVE_ATTEMPT
    )


def _near(owner: str, place: str | None) -> bool:
    """Whether the attempt's process is on the owner's node, as far as anybody has it."""
    return place is None or place.partition(":")[0] == owner.partition(":")[0]


def _new(item: Wanted, now: datetime) -> RunCancellationDispatch:
    return RunCancellationDispatch(
        run_id=item.run_id, attempt_id=item.attempt_id, status="pending", next_attempt_at=item.requested_at,
        created_at=now, updated_at=now,
    )  # fmt: skip


def _refusal(row: RunCancellationDispatch, now: datetime) -> str | None:
    if row.status in ("dispatched", "blocked"):
        return row.status
    if row.lease_expires_at is not None:
        return "leased" if row.lease_expires_at > now else None
    return "not_due" if row.next_attempt_at is not None and row.next_attempt_at > now else None


def _check_result(item: Told) -> None:
    delay, retried = item.retry_delay_ms, item.result in RETRYABLE
    if item.result not in RESULTS or item.expected_version < 1 or (delay is None) == retried:
        raise CancellationCommandInvalid
    if delay is not None and not 1 <= delay <= MAX_DELAY_MS:
        raise CancellationCommandInvalid


def _holds(row: RunCancellationDispatch, owner: str, token: str, item: Told) -> bool:
    return (
        row.attempt_id == item.attempt_id
        and row.status == "leased"
        and row.version == item.expected_version
        and row.lease_owner == owner
        and hmac.compare_digest((row.lease_token or "").encode(), token.encode())
    )


def _event(result: str) -> str:
    if result in RETRYABLE:
        return "run.cancel_dispatch_failed"
    return "run.cancel_dispatch_blocked" if result in BLOCKING else "run.cancel_dispatched"


def _settle(row: RunCancellationDispatch, item: Told, now: datetime) -> None:
    row.status = (
        "retry_wait" if item.result in RETRYABLE else "blocked" if item.result in BLOCKING else "dispatched"
    )
    row.version, row.updated_at, row.last_result = row.version + 1, now, item.result
    row.lease_owner = row.lease_token = row.lease_expires_at = row.next_attempt_at = None
    if item.retry_delay_ms is not None:
        row.next_attempt_at = now + timedelta(milliseconds=item.retry_delay_ms)
    if item.result not in NOT_CALLED:
        row.last_dispatched_at = now


def _update(rows: Sequence[tuple[int, RunCancellationDispatch]]) -> None:
    """Compare-and-set of all rows; raises CancellationFenceRejected where one was not as read."""
    changed = bulk.update_rows(
        RunCancellationDispatch,
        # The version stands among the keys as it was read, and among the columns as it is from now on.
        ["run_id", "version"],
        _COLUMNS,
        [(row.run_id, version, *(getattr(row, name) for name in _COLUMNS)) for version, row in rows],
    )
    if len(changed) != len(rows):
        raise CancellationFenceRejected
