"""The run of an approved action, with its receipt in the same transaction (approvals.md §6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import DatabaseError

from apps.approvals import errors, plans, receipts, standing
from apps.approvals.action_records import check_execution, check_receipt, receipt_digest
from apps.approvals.contract import Snapshot
from apps.approvals.errors import InvalidApprovedRunAction
from apps.approvals.models import ApprovedActionExecution, ApprovedActionPlan, ApprovedRunReceipt
from apps.approvals.plans import Plan
from apps.approvals.records import check_dispatch, requester_of
from apps.core import clock, db
from apps.core.db import write_transaction
from apps.core.errors import Busy, Conflict
from apps.projects.policy import Grant
from apps.runs.errors import IdempotencyKeyReused
from apps.runs.models import Run, RunAttempt
from apps.runs.services import Skipped, start_run
from apps.runs.services.door import Approved
from apps.runs.services.places import lock_tasks

ACTOR = "approved-action-dispatcher"


class ActionVoid(Conflict):
    """What was approved is no longer what would happen; `extra["reason"]` says why."""

    code = "approved_run_action_void"


@dataclass(frozen=True)
class Created:
    """The run and its first attempt."""

    run: Run
    attempt: RunAttempt


def create_approved_run(snapshot: Snapshot, row: ApprovedActionPlan) -> Created:
    """Queues the run of an execution that passed the barrier, once, or finds it again by its receipt.

    Raises RunActionBindingConflict, InvalidApprovedRunAction and what invalid snapshots raise, ActionVoid, and
    RunActionRepositoryError for everything else of the database.
    """
    plan = _check(snapshot, row)
    try:
        found = replay(snapshot)
        return found if found is not None else _create(snapshot, row, plan)
    except (Busy, DatabaseError) as error:
        raise errors.RunActionRepositoryError from error


def replay(snapshot: Snapshot) -> Created | None:
    """The run that this execution made before, None where there is nothing of it.

    A run under its key without a receipt is somebody else's: RunActionBindingConflict, as for a receipt that does not
    fit. A damaged receipt is InvalidApprovedRunAction.
    """
    receipt = receipts.of(snapshot.dispatch.pk)
    if receipt is None:
        if receipts.run_by_key(snapshot.dispatch) is not None:
            raise errors.RunActionBindingConflict
        return None
    check_receipt(receipt)
    if not receipts.fits(receipt, snapshot):
        raise errors.RunActionBindingConflict
    found = receipts.resource(receipt, snapshot.dispatch)
    if found is None:
        raise errors.RunActionBindingConflict
    return Created(*found)


def _check(snapshot: object, row: ApprovedActionPlan) -> Plan:
    if not isinstance(snapshot, Snapshot):
        raise InvalidApprovedRunAction
    dispatch, execution = check_dispatch(snapshot.dispatch), check_execution(snapshot.execution)
    if (execution.pk, execution.project_id) != (dispatch.pk, dispatch.project_id):
        raise errors.RunActionBindingConflict
    if execution.status != "executing" or execution.started_at is None:
        raise errors.RunActionBindingConflict
    plan = plans.plan_of(row)
    if (dispatch.action_type, dispatch.action_ref, dispatch.project_id, dispatch.action_digest) != (
        "run.create", plan.action_ref, plan.project_id, plan.digest,
    ):  # fmt: skip
        raise errors.RunActionBindingConflict
    return plan


@write_transaction
def _create(snapshot: Snapshot, row: ApprovedActionPlan, plan: Plan) -> Created:
    dispatch, seen = snapshot.dispatch, snapshot.execution
    assert seen.started_at is not None
    # Locks in the order of the house: project, execution, task.
    db.lock_shared("projects", "id", plan.project_id)
    version = _hold(seen)
    lock_tasks([UUID(plan.task_id)])
    if code := standing.changed(row, dispatch.permission):
        raise ActionVoid(reason=code)
    given = plans.given_of(row)
    if given is None:
        raise ActionVoid(reason="input_changed")
    approved = Approved(
        dispatch.approval_request_id, requester_of(dispatch), plan.task_revision, seen.started_at
    )
    try:
        started = start_run(
            Grant.system(plan.project_id, "run.start", ACTOR),
            UUID(plan.task_id),
            trigger_type="approved_action",
            input=given.input,
            args=given.args,
            priority=plan.priority,
            idempotency_key=dispatch.pk,
            approved=approved,
        )
    except IdempotencyKeyReused as error:
        raise errors.RunActionBindingConflict from error
    if isinstance(started, Skipped) or started.replayed:
        # Whoever came between left a receipt or is somebody else.
        before = replay(snapshot)
        if before is None:
            raise errors.RunActionBindingConflict
        return before
    made = receipts.created(started.run, dispatch)
    if made is None or made[0].status != "queued":
        raise errors.RunActionBindingConflict
    _leave_receipt(snapshot, version, seen.started_at, made[0])
    return Created(*made)


def _hold(seen: ApprovedActionExecution) -> int:
    """The version of the execution now, whose holder may have renewed; RunActionBindingConflict for anything else.

    That its lease ran out is no matter: nobody took it over.
    """
    row = db.lock(ApprovedActionExecution.objects.filter(pk=seen.pk)).first()
    if row is None or row.version < seen.version:
        raise errors.RunActionBindingConflict
    names = ("project_id", "status", "attempt_count", "lease_owner", "lease_token", "started_at")
    if any(getattr(row, name) != getattr(seen, name) for name in names):
        raise errors.RunActionBindingConflict
    return row.version


def _leave_receipt(snapshot: Snapshot, version: int, started_at: datetime, run: Run) -> None:
    dispatch, seen = snapshot.dispatch, snapshot.execution
    now = clock.now()
    receipt = ApprovedRunReceipt(
        dispatch=dispatch,
        approval_request_id=dispatch.approval_request_id,
        project_id=dispatch.project_id,
        schema_version=1,
        action_type=dispatch.action_type,
        action_digest=dispatch.action_digest,
        execution_attempt=seen.attempt_count,
        execution_version=version,
        started_at=started_at,
        idempotency_key=dispatch.pk,
        outcome="succeeded",
        result_code="approved_run_created",
        resource_type="run",
        resource=run,
        finished_at=now,
        created_at=now,
    )
    receipt.evidence_digest = receipt_digest(receipt)
    check_receipt(receipt).save(force_insert=True)
