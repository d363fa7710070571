"""What is found of an attempt whose session is gone (runs.md §9): verified, never signalled, never guessed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Q

from apps.core.errors import InvalidInput
from apps.dispatch.launcher import client
from apps.dispatch.launcher.client import Handle
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt

PAGE = 32
MAX_PAGE = 128
UNOBSERVED = "RECOVERY_PROCESS_EXITED_UNOBSERVED"
INCOMPLETE = "RECOVERY_ATTEMPT_INCOMPLETE"
HANDLE_MISSING = "RECOVERY_HANDLE_MISSING"
HANDLE_INVALID = "RECOVERY_HANDLE_INVALID"
PID_MISMATCH = "RECOVERY_IDENTITY_PID_MISMATCH"
IDENTITY_MISMATCH = "RECOVERY_IDENTITY_MISMATCH"
UNSUPPORTED = "RECOVERY_IDENTITY_UNSUPPORTED"
_GONE = {"exited": UNOBSERVED, "identity_mismatch": IDENTITY_MISMATCH, "invalid": HANDLE_INVALID}

Position = tuple[datetime, UUID]


@dataclass(frozen=True)
class Found:
    """`code` is empty where exactly the shim on record lives, else what the attempt is lost as without a receipt."""

    handle: Handle | None
    code: str = ""


def examine(attempt: RunAttempt) -> Found:
    """Looks for the shim of an attempt on this node by pid, start and boot; reads a few lines of /proc."""
    found = _examine(attempt)
    if found.code and attempt.status != "running":
        return Found(found.handle, INCOMPLETE)
    return found


def _examine(attempt: RunAttempt) -> Found:
    if attempt.executor_handle is None:
        return Found(None, HANDLE_MISSING)
    try:
        handle = Handle.decode(attempt.executor_handle)
    except ValueError:
        return Found(None, HANDLE_INVALID)
    if attempt.pid != handle.pid:
        return Found(handle, PID_MISMATCH)
    try:
        return Found(handle, _GONE.get(client.inspect(handle), ""))
    except OSError:
        return Found(handle, UNSUPPORTED)


@dataclass(frozen=True)
class Candidate:
    """A run under way, with its active attempts: one is usual, none is lost, several are a person's to judge."""

    run_id: UUID
    attempts: tuple[UUID, ...]


@dataclass(frozen=True)
class RecoveryPage:
    """`next_cursor` stands behind every page that is not empty; an overflow shows nothing and leads nowhere."""

    candidates: tuple[Candidate, ...] = ()
    truncated: bool = False
    overflow: bool = False
    next_cursor: Position | None = None


def under_way(*, after: Position | None = None, limit: int = PAGE) -> RecoveryPage:
    """Runs that are dispatching or running, the oldest first; `limit` is 1–128; two queries. Raises InvalidInput."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput.field("limit", f"A whole number from 1 to {MAX_PAGE}.")
    rows = Run.objects.filter(execution_owner="runtime", status__in=["dispatching", "running"])
    if after is not None:
        rows = rows.filter(Q(created_at__gt=after[0]) | Q(created_at=after[0], pk__gt=after[1]))
    found = list(rows.order_by("created_at", "pk").values_list("created_at", "pk")[: limit + 1])
    truncated = len(found) > limit
    del found[limit:]
    if not found:
        return RecoveryPage()
    attempts = _active([pk for _at, pk in found], 2 * limit)
    if attempts is None:
        return RecoveryPage(truncated=truncated, overflow=True)
    candidates = tuple(Candidate(pk, tuple(attempts[pk])) for _at, pk in found)
    return RecoveryPage(candidates, truncated, next_cursor=found[-1])


def _active(run_ids: Collection[UUID], most: int) -> dict[UUID, list[UUID]] | None:
    """The active attempts by run, None where they are more than can be trusted to be all."""
    rows = RunAttempt.objects.filter(run_id__in=run_ids, status__in=sorted(ACTIVE_ATTEMPT))
    found = list(
        rows.order_by("run_id", "-attempt", "-created_at", "-pk").values_list("run_id", "pk")[: most + 1]
    )
    if len(found) > most:
        return None
    by_run: dict[UUID, list[UUID]] = defaultdict(list)
    for run_id, pk in found:
        by_run[run_id].append(pk)
    return by_run


def ambiguous(limit: int = PAGE) -> list[UUID]:
    """Runs under way with more than one active attempt: nobody touches them, and a person has to look."""
    rows = Run.objects.filter(execution_owner="runtime", status__in=["dispatching", "running"])
    counted = rows.annotate(active=Count("attempts", filter=Q(attempts__status__in=sorted(ACTIVE_ATTEMPT))))
    return list(counted.filter(active__gt=1).order_by("pk").values_list("pk", flat=True)[:limit])
