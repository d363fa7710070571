"""`run.create`: one run of a task as it was when somebody asked (approvals.md §6.2, §7.1)."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from apps.approvals import errors, plans, receipts, standing
from apps.approvals.action_records import check_receipt
from apps.approvals.contract import Block, Evidence, Held, Inspection, Ready, Result, Snapshot, Wait
from apps.approvals.errors import InvalidApprovedRunAction
from apps.approvals.models import ApprovedActionDispatch, ApprovedActionPlan
from apps.approvals.services.run_creation import ActionVoid, create_approved_run
from apps.core.errors import InvalidInput

NAME = "run.create"


class RunCreate:
    """Looks whether the plan still stands, and creates its run with a receipt."""

    def inspect(self, dispatch: ApprovedActionDispatch) -> Inspection:
        """The plan's digest, worked out anew, where all that it was approved with still holds."""
        if dispatch.action_type != NAME:
            return Block("approved_run_type_mismatch")
        row = plans.resolve(dispatch.action_ref)
        if row is None:
            return Wait("approved_run_plan_missing")
        if not _bound(row, dispatch):
            return Block("approved_run_plan_binding_invalid")
        try:
            digest = plans.plan_of(row).digest
        except InvalidApprovedRunAction:
            return Block("approved_run_plan_invalid")
        if digest != dispatch.action_digest:
            return Ready(digest)
        code = standing.changed(row, dispatch.permission)
        return Ready(digest) if code is None else Block(code)

    def execute(self, snapshot: Snapshot, key: str, held: Held) -> Result:
        """Creates the run, or finds the one it made; "succeeded" says that it is queued, no more."""
        if not _held(snapshot, key, held):
            return Result("failed", "approved_run_fence_invalid")
        row = plans.resolve(snapshot.dispatch.action_ref)
        if row is None:
            return Result("failed", "approved_run_plan_disappeared")
        if not _unchanged(row, snapshot.dispatch):
            return Result("failed", "approved_run_plan_changed")
        try:
            create_approved_run(snapshot, row)
        except errors.RunActionBindingConflict:
            return Result("failed", "approved_run_receipt_conflict")
        except ActionVoid as error:
            return Result("failed", error.extra["reason"])
        return Result("succeeded", "approved_run_created")


class RunEvidence:
    """Looks for the receipt; what became of the run since is no matter."""

    capability: Literal["automatic"] = "automatic"

    def observe(self, snapshot: Snapshot, key: str, observed_at: datetime) -> Evidence:
        """Verified, missing or conflict; raises what the database raises."""
        conflict = Evidence("conflict", "approved_run_receipt_conflict")
        dispatch, execution = snapshot.dispatch, snapshot.execution
        if dispatch.action_type != NAME or key != dispatch.pk or execution.started_at is None:
            return conflict
        if (execution.pk, execution.project_id) != (dispatch.pk, dispatch.project_id):
            return conflict
        receipt = receipts.of(dispatch.pk)
        if receipt is None:
            # Looked for behind the receipt: whatever is written together is seen together, or not at all.
            if receipts.run_by_key(dispatch) is None:
                return Evidence("missing", "approved_run_receipt_missing")
            return conflict if receipts.of(dispatch.pk) is None else self.observe(snapshot, key, observed_at)
        try:
            check_receipt(receipt)
        except InvalidInput:
            return conflict
        if not receipts.fits(receipt, snapshot) or receipt.execution_version > execution.version:
            return conflict
        if receipts.resource(receipt, dispatch) is None:
            return conflict
        return Evidence("verified_succeeded", "approved_run_receipt_verified", receipt.evidence_digest)


def _bound(row: ApprovedActionPlan, dispatch: ApprovedActionDispatch) -> bool:
    return (row.action_ref, row.project_id, row.request_id) == (
        dispatch.action_ref, dispatch.project_id, dispatch.approval_request_id,
    )  # fmt: skip


def _unchanged(row: ApprovedActionPlan, dispatch: ApprovedActionDispatch) -> bool:
    try:
        return _bound(row, dispatch) and plans.plan_of(row).digest == dispatch.action_digest
    except InvalidApprovedRunAction:
        return False


def _held(snapshot: Snapshot, key: str, held: Held) -> bool:
    """Whether the call is for this dispatch, behind the barrier, and from its holder."""
    dispatch, execution = snapshot.dispatch, snapshot.execution
    return (
        dispatch.action_type == NAME
        and execution.status == "executing"
        and execution.started_at is not None
        and (execution.pk, execution.project_id) == (dispatch.pk, dispatch.project_id)
        and (execution.lease_owner, execution.lease_token) == (held.owner, held.token)
        and (execution.version, execution.pk) == (held.generation, held.subject.pk)
        and key == dispatch.pk
    )
