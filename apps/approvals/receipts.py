"""Receipts of created runs: finding one, and whether it is of this execution (approvals.md §6.3, §7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from apps.approvals.contract import Snapshot
from apps.approvals.models import ApprovedActionDispatch, ApprovedRunReceipt
from apps.runs.models import Run, RunAttempt
from apps.runs.queries import find_by_key


def of(dispatch_id: str) -> ApprovedRunReceipt | None:
    """The stored receipt, unchecked; the table holds one for a dispatch at most."""
    return ApprovedRunReceipt.objects.filter(pk=dispatch_id).first()


def run_by_key(dispatch: ApprovedActionDispatch) -> Run | None:
    """Whoever holds the key of this dispatch."""
    return find_by_key(dispatch.project_id, dispatch.pk)


def fits(receipt: ApprovedRunReceipt, snapshot: Snapshot) -> bool:
    """Whether a checked receipt is of this execution, at whatever version its holder was by then."""
    dispatch, execution = snapshot.dispatch, snapshot.execution
    return (
        receipt.dispatch_id,
        receipt.approval_request_id,
        receipt.project_id,
        receipt.action_type,
        receipt.action_digest,
        receipt.execution_attempt,
        receipt.started_at,
        receipt.idempotency_key,
    ) == (
        dispatch.pk,
        dispatch.approval_request_id,
        dispatch.project_id,
        dispatch.action_type,
        dispatch.action_digest,
        execution.attempt_count,
        execution.started_at,
        dispatch.pk,
    )


def resource(receipt: ApprovedRunReceipt, dispatch: ApprovedActionDispatch) -> tuple[Run, RunAttempt] | None:
    """The run a receipt names with its latest attempt, None where it is missing or not of this dispatch."""
    run = Run.objects.filter(pk=receipt.resource_id).first()
    return None if run is None else created(run, dispatch)


def created(run: Run, dispatch: ApprovedActionDispatch) -> tuple[Run, RunAttempt] | None:
    """A run and its latest attempt, if it is the one that this dispatch makes."""
    attempt = RunAttempt.objects.filter(run=run).order_by("-attempt").first()
    told = (
        run.project_id, run.idempotency_key, run.request_id, run.execution_owner, run.execution_origin,
        run.trigger_type,
    )  # fmt: skip
    expected = (
        dispatch.project_id, dispatch.pk, dispatch.approval_request_id, "runtime", "system", "approved_action",
    )  # fmt: skip
    return (run, attempt) if attempt is not None and told == expected else None


def still_needed(run_ids: Sequence[UUID]) -> set[UUID]:
    """Those of the runs whose receipt recovery may still have to look at: they stay whole. One query."""
    rows = ApprovedRunReceipt.objects.filter(
        resource_id__in=list(run_ids), dispatch__execution__status="executing"
    )
    return set(rows.values_list("resource_id", flat=True))
