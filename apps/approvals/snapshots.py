"""Dispatch, execution and what recovery found, read together and checked (approvals.md §2, §7.2)."""

from __future__ import annotations

from apps.approvals import errors, values
from apps.approvals.action_records import (
    check_authorization,
    check_control,
    check_execution,
    check_resolution,
)
from apps.approvals.contract import ENDED, RecoverySnapshot, Snapshot
from apps.approvals.models import (
    ApprovalRequest,
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
)
from apps.approvals.records import action_of, check_dispatch, requester_of
from apps.core.errors import InvalidInput


def find(dispatch_id: str) -> RecoverySnapshot | None:
    """All that is on record, from one query and checked; None where the barrier was never passed.

    Raises RecoveryBindingConflict, RecoveryRepositoryError.
    """
    if not values.is_identifier(dispatch_id, 64):
        return None
    rows = ApprovedActionExecution.objects.select_related("dispatch", "control__resolution__authorization")
    row = rows.filter(pk=dispatch_id).first()
    if row is None:
        return None
    control: ApprovedActionRecoveryControl | None = getattr(row, "control", None)
    if control is None:
        if row.started_at is not None:
            raise errors.RecoveryRepositoryError
        return None
    resolution = getattr(control, "resolution", None)
    fact = None if resolution is None else getattr(resolution, "authorization", None)
    return sound_recovery(row, control, resolution, fact)


def sound(dispatch: ApprovedActionDispatch, row: ApprovedActionExecution) -> Snapshot:
    """Both, checked; raises DispatchRepositoryError for damaged rows, DispatchBindingConflict where they are not of
    one piece.
    """
    try:
        check_dispatch(dispatch)
        check_execution(row)
    except InvalidInput as error:
        raise errors.DispatchRepositoryError from error
    if (row.pk, row.project_id, row.created_at) != (dispatch.pk, dispatch.project_id, dispatch.created_at):
        raise errors.DispatchBindingConflict
    return Snapshot(dispatch, row)


def require_consumed(dispatch: ApprovedActionDispatch) -> None:
    """That an approval was used for this very dispatch: asked before the barrier, whoever wrote the row.

    Raises DispatchBindingConflict.
    """
    request = dispatch.approval_request
    same = (
        request.state == ApprovalRequest.State.CONSUMED
        and request.decision == "approved"
        and request.version == dispatch.approval_request_version
        and (request.dispatch_id, request.project_id) == (dispatch.pk, dispatch.project_id)
        and action_of(request) == action_of(dispatch)
        and requester_of(request) == requester_of(dispatch)
        and (request.consumed_by_type, request.consumed_by_id)
        == (dispatch.consumed_by_type, dispatch.consumed_by_id)
        and request.consumed_at == dispatch.created_at
    )
    if not same:
        raise errors.DispatchBindingConflict


def sound_recovery(
    row: ApprovedActionExecution,
    control: ApprovedActionRecoveryControl,
    resolution: ApprovedActionRecoveryResolution | None,
    fact: ApprovedActionRecoveryAuthorization | None,
) -> RecoverySnapshot:
    """All of it, checked; raises RecoveryRepositoryError for damaged rows, RecoveryBindingConflict where they are not
    of one piece.
    """
    try:
        sound(row.dispatch, row)
        check_control(control)
        if resolution is not None:
            check_resolution(resolution)
        if fact is not None:
            check_authorization(fact)
    except (InvalidInput, errors.DispatchRepositoryError) as error:
        raise errors.RecoveryRepositoryError from error
    except errors.DispatchBindingConflict as error:
        raise errors.RecoveryBindingConflict from error
    if {part.project_id for part in (control, resolution, fact) if part is not None} != {row.project_id}:
        raise errors.RecoveryBindingConflict
    ended = row.status in ENDED
    if control.execution_version != row.version or (control.status == "resolved") != ended:
        raise errors.RecoveryBindingConflict
    if ended and control.resolution_mutation_id != row.result_mutation_id:
        raise errors.RecoveryBindingConflict
    if not ended and (row.status != "executing" or resolution is not None):
        raise errors.RecoveryBindingConflict
    if resolution is not None and (resolution.execution_version + 1, resolution.mutation_id) != (
        row.version, row.result_mutation_id,
    ):  # fmt: skip
        raise errors.RecoveryBindingConflict
    if fact is not None and (resolution is None or resolution.source != "human"):
        raise errors.RecoveryBindingConflict
    return RecoverySnapshot(row.dispatch, row, control, resolution, fact)
