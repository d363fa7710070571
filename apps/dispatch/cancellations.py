"""Stops on their way: which are to be delivered, and what is on record of one (runs.md §3.5, §7.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from apps.core import bulk, canonical
from apps.core.errors import Corrupt, InvalidInput
from apps.dispatch.models import RESULTS, EscapedProcesses, RunCancellationDispatch, RunDispatchLease
from apps.runs.machine import ATTEMPT_ENDED
from apps.runs.models import ACTIVE_ATTEMPT, OPEN, Run, RunAttempt, RunEvent

PAGE = 32
MAX_PAGE = 128
DONE = frozenset({"termination_requested", "already_exited"})
RETRYABLE = frozenset({"controller_missing", "handle_missing", "dispatch_error"})
BLOCKING = frozenset(RESULTS) - DONE - RETRYABLE

Position = tuple[datetime, UUID]


@dataclass(frozen=True)
class AttemptReference:
    """What a controller needs to find the process of an attempt again."""

    attempt_id: UUID
    executor_type: str
    handle: str | None
    pid: int | None


@dataclass(frozen=True)
class Candidate:
    """A run that is to be stopped, with its active attempts; more than one is ambiguous and gets no signal."""

    run_id: UUID
    requested_at: datetime
    reason: str
    attempts: tuple[AttemptReference, ...]


@dataclass(frozen=True)
class PendingPage:
    """`next_cursor` stands behind every page that is not empty; an overflow shows nothing and leads nowhere."""

    candidates: tuple[Candidate, ...] = ()
    truncated: bool = False
    overflow: bool = False
    next_cursor: Position | None = None


@dataclass(frozen=True)
class Record:
    """A stop's delivery as everybody may see it: of the token no more than a digest under a name of its own."""

    run_id: UUID
    attempt_id: UUID
    status: str
    version: int
    dispatch_count: int
    next_attempt_at: datetime | None
    lease_owner: str | None
    lease_token_digest: str | None
    lease_expires_at: datetime | None
    last_result: str | None
    last_dispatched_at: datetime | None
    created_at: datetime
    updated_at: datetime


def pending(
    run_ids: Collection[UUID] | None = None,
    *,
    after: Position | None = None,
    limit: int = PAGE,
    due_at: datetime | None = None,
) -> PendingPage:
    """Runs with a stop that has not come to its end, the oldest wish first; `limit` is 1–128.

    `run_ids` narrows it to what a session carries, `due_at` to what may be claimed then. Raises InvalidInput.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput.field("limit", f"A whole number from 1 to {MAX_PAGE}.")
    rows = Run.objects.filter(
        execution_owner="runtime", status__in=sorted(OPEN), cancel_requested_at__isnull=False
    )
    if run_ids is not None:
        rows = rows.filter(pk__in=list(run_ids))
    if due_at is not None:
        rows = rows.filter(
            Q(cancellation__isnull=True)
            | Q(cancellation__next_attempt_at__lte=due_at)
            | Q(cancellation__lease_expires_at__lte=due_at)
        )
    if after is not None:
        rows = rows.filter(
            Q(cancel_requested_at__gt=after[0]) | Q(cancel_requested_at=after[0], pk__gt=after[1])
        )
    ordered = rows.order_by("cancel_requested_at", "pk")
    found = [
        (pk, at, reason or "")
        for pk, at, reason in ordered.values_list("pk", "cancel_requested_at", "cancel_reason")[: limit + 1]
        if at is not None
    ]
    truncated = len(found) > limit
    del found[limit:]
    if not found:
        return PendingPage()
    attempts = _active([pk for pk, _at, _reason in found], 2 * limit)
    if attempts is None:
        return PendingPage(truncated=truncated, overflow=True)
    candidates = tuple(Candidate(pk, at, reason, tuple(attempts[pk])) for pk, at, reason in found)
    return PendingPage(candidates, truncated, next_cursor=(found[-1][1], found[-1][0]))


def wished(run_ids: Collection[UUID]) -> list[UUID]:
    """Those of some runs that are to be stopped: a session's frequent look, which spares it the ORM's compiler."""
    if not run_ids:
        return []
    where, params = bulk.among(Run, "id", run_ids)
    found = bulk.select_values_later(
        f"SELECT id FROM runs WHERE {where} AND cancel_requested_at IS NOT NULL", params
    )
    return [Run._meta.pk.to_python(value) for value in found()]


def unheard(node_id: str, now: datetime) -> list[UUID]:
    """Runs of a node that are to be stopped and whose session lets its leases run out; at most 128."""
    rows = RunDispatchLease.objects.filter(
        status="leased",
        expires_at__lte=now,
        worker__node_id=node_id,
        run__cancel_requested_at__isnull=False,
        attempt__status__in=["starting", "running"],
    )
    return list(rows.order_by("expires_at", "attempt_id").values_list("run_id", flat=True)[:MAX_PAGE])


def _active(run_ids: list[UUID], most: int) -> dict[UUID, list[AttemptReference]] | None:
    """The active attempts by run, None where they are more than can be trusted to be all."""
    rows = RunAttempt.objects.filter(run_id__in=run_ids, status__in=sorted(ACTIVE_ATTEMPT))
    found = list(rows.order_by("run_id", "-attempt", "-created_at", "-pk")[: most + 1])
    if len(found) > most:
        return None
    by_run: dict[UUID, list[AttemptReference]] = defaultdict(list)
    for row in found:
        by_run[row.run_id].append(AttemptReference(row.pk, row.executor_type, row.executor_handle, row.pid))
    return by_run


def find(run_id: UUID) -> Record | None:
    """What is on record of a run's stop; raises Corrupt where the row breaks its own rules."""
    row = RunCancellationDispatch.objects.filter(pk=run_id).first()
    return None if row is None else record_of(row)


def record_of(row: RunCancellationDispatch) -> Record:
    """A row without its token; raises Corrupt."""
    check(row)
    token = row.lease_token
    return Record(
        row.run_id, row.attempt_id, row.status, row.version, row.dispatch_count, row.next_attempt_at,
        row.lease_owner, None if token is None else token_digest(token), row.lease_expires_at,
        row.last_result, row.last_dispatched_at, row.created_at, row.updated_at,
    )  # fmt: skip


def token_digest(token: str) -> str:
    """Stands for a token wherever it is shown; nobody can look it up among digests of other things."""
    return canonical.domain_digest("qinglong.cancellation-dispatch-lease.v1", token)


def check(row: RunCancellationDispatch) -> None:
    """Raises Corrupt unless status, lease, next time and result of a stored row fit together (runs.md §3.5)."""
    leased = [value is not None for value in (row.lease_owner, row.lease_token, row.lease_expires_at)]
    right = (
        row.status in RunCancellationDispatch.Status.values
        and all(leased) == any(leased) == (row.status == "leased")
        and (row.next_attempt_at is not None) == (row.status in ("pending", "retry_wait"))
        and (row.last_result is not None or row.status not in ("dispatched", "blocked"))
        and (row.last_result is None or row.last_result in RESULTS)
        and row.version >= 0
        and row.dispatch_count >= 0
    )
    if not right:
        raise Corrupt


def proofs(run_id: UUID) -> dict[UUID, dict[str, Any]]:
    """By attempt, what its end says of its stop: cause, processes, took_ms, killed, escaped (pid and start ticks)."""
    ends = [f"attempt.{status}" for status in sorted(ATTEMPT_ENDED)]
    rows = RunEvent.objects.filter(run_id=run_id, type__in=ends, attempt_id__isnull=False)
    return {
        attempt_id: {"cause": payload.get("cause"), **payload["stopped"]}
        for attempt_id, payload in rows.values_list("attempt_id", "payload")
        if attempt_id is not None and "stopped" in payload
    }


@dataclass(frozen=True)
class Stop:
    """What is known of the stop of one attempt: its delivery, the proof of its end, the wish to kill who escaped."""

    delivery: Record | None = None
    proof: dict[str, Any] | None = None
    kill: EscapedProcesses | None = None


def stops(run_id: UUID) -> dict[UUID, Stop]:
    """By attempt, for those of a run of whose stop there is something to say; three queries. Raises Corrupt."""
    delivery = find(run_id)
    known = proofs(run_id)
    kills = {
        row.attempt_id: row for row in EscapedProcesses.objects.filter(run_id=run_id, pk__in=list(known))
    }
    attempts = {*known, *([delivery.attempt_id] if delivery else [])}
    return {
        pk: Stop(
            delivery if delivery is not None and delivery.attempt_id == pk else None,
            known.get(pk),
            kills.get(pk),
        )
        for pk in attempts
    }
