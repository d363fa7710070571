"""What dispatch has to say when logs are removed and histories fold: what is not settled stays (runs.md §3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from apps.artifacts.retention import candidates
from apps.core import bulk
from apps.dispatch.models import (
    CompletionReceiptJournal,
    EscapedProcesses,
    RunCancellationDispatch,
    RunDispatchLease,
)
from apps.runs.models import RunAttempt
from apps.runs.services import folding

_UNDELIVERED = ("pending", "leased", "retry_wait")


def unsettled(attempt_ids: Sequence[UUID]) -> set[UUID]:
    """Attempts of which a receipt may still lie on a node's disk, pending or quarantined."""
    rows = CompletionReceiptJournal.objects.filter(pk__in=attempt_ids)
    return set(rows.values_list("attempt_id", flat=True))


def blocks(run_ids: Sequence[UUID]) -> set[UUID]:
    """Runs that somebody carries, whose stop is on its way, or of which processes are to be killed."""
    found: set[UUID] = set()
    # By their attempts, which are the keys of these tables: none has an index over runs.
    attempts = list(RunAttempt.objects.filter(run_id__in=run_ids).values_list("pk", flat=True))
    for rows in (
        CompletionReceiptJournal.objects.filter(pk__in=attempts),
        RunDispatchLease.objects.filter(pk__in=attempts, status=RunDispatchLease.Status.LEASED),
        RunCancellationDispatch.objects.filter(pk__in=run_ids, status__in=_UNDELIVERED),
        EscapedProcesses.objects.filter(pk__in=attempts, done_at__isnull=True),
    ):
        found |= set(rows.values_list("run_id", flat=True))
    return found


def remove(run_ids: Sequence[UUID], attempt_ids: Sequence[UUID]) -> None:
    """Leases, deliveries of stops and what became of escaped processes go with the attempts."""
    for model in (RunDispatchLease, EscapedProcesses):
        bulk.delete_rows(model, "attempt_id", attempt_ids)
    bulk.delete_rows(RunCancellationDispatch, "run_id", run_ids)


def register() -> None:
    """Tells retention."""
    candidates.register_blocker("receipts", unsettled)
    folding.register("dispatch", folding.Part(blocks, remove))
