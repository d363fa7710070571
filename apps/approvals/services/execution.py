"""Claim, start, renew, release, complete: every write of an execution (approvals.md §5).

Only a holder writes, and each write names the row, owner, token and version it was made for. `started_at` is the
barrier: before it a lease that ran out may be taken over, behind it nothing is ever carried out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.approvals import errors, snapshots, values
from apps.approvals.action_records import check_control
from apps.approvals.contract import ENDED, Held, Snapshot
from apps.approvals.models import (
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionRecoveryControl,
)
from apps.approvals.models.execution import MAX_LEASE_MS
from apps.approvals.services import ending
from apps.approvals.services.fencing import NO_LEASE, check_claim, move_control, move_execution
from apps.approvals.transactions import kept
from apps.core import db
from apps.core.fields import MAX_VERSION

LEASE_MS = 30_000
EXHAUSTED = "attempt_budget_exhausted"
OUTCOMES = {"succeeded": "succeeded", "failed": "failed", "indeterminate": "blocked"}

_REFUSAL = errors.InvalidApprovedActionExecution


@dataclass(frozen=True)
class Claimed:
    """What a claim came to: `claimed`, or why not; the snapshot is missing only for `not_found`."""

    status: str
    snapshot: Snapshot | None = None


def claim(dispatch_id: str, owner: str, token: str, now: datetime, duration_ms: int = LEASE_MS) -> Claimed:
    """Takes an execution that is due for at most ten minutes.

    The status is `claimed` (again without a write, while the lease lives), `not_found`, `leased`, `not_due`,
    `executing`, `recovery_required`, or that of an ended execution; one whose attempts are used up is blocked.
    Raises InvalidApprovedActionExecution, DispatchBindingConflict, DispatchFenceRejected, DispatchRepositoryError.
    """
    check_claim(dispatch_id, owner, token, now, duration_ms, _REFUSAL)
    return _claim(dispatch_id, owner, token, now, duration_ms)


@kept(errors.DispatchRepositoryError)
def _claim(dispatch_id: str, owner: str, token: str, now: datetime, duration_ms: int) -> Claimed:
    found = load(dispatch_id)
    if found is None:
        return Claimed("not_found")
    row = found.execution
    if row.status in (*ENDED, "executing"):
        return Claimed(found.status(now), found)
    snapshots.require_consumed(found.dispatch)
    live = row.lease_expires_at is not None and row.lease_expires_at > now
    if live and (row.lease_owner, row.lease_token) == (owner, token):
        return Claimed("claimed", found)
    if row.eligible_at is None or row.eligible_at > now:
        return Claimed("leased" if row.status == "leased" else "not_due", found)
    if row.attempt_count >= row.max_attempts:
        _write(found, now, **_end("blocked", f"exhausted:{row.version}", EXHAUSTED, now), **NO_LEASE)
        ending.tell(found)
        return Claimed("blocked", found)
    expires_at = now + timedelta(milliseconds=duration_ms)
    _write(
        found,
        now,
        status="leased",
        attempt_count=row.attempt_count + 1,
        eligible_at=expires_at,
        next_attempt_at=None,
        lease_owner=owner,
        lease_token=token,
        lease_expires_at=expires_at,
        result_mutation_id=None,
        last_result_code=None,
    )
    return Claimed("claimed", found)


def start(held: Held, approval_request_id: str, action_digest: str, started_at: datetime) -> Snapshot:
    """Passes the barrier: from here on the action may have happened, and recovery watches over it.

    The same call again answers with the same snapshot. Raises DispatchBindingConflict for another request or
    digest, DispatchFenceRejected where the lease ran out or was taken over, and what `claim` raises.
    """
    _check(held, started_at)
    return _start(held, approval_request_id, action_digest, started_at)


@kept(errors.DispatchRepositoryError)
def _start(held: Held, approval_request_id: str, action_digest: str, started_at: datetime) -> Snapshot:
    found = _existing(held)
    dispatch, row = found.dispatch, found.execution
    if (dispatch.approval_request_id, dispatch.action_digest) != (approval_request_id, action_digest):
        raise errors.DispatchBindingConflict
    holds = (row.lease_owner, row.lease_token) == (held.owner, held.token)
    if row.status == "executing":
        control = ApprovedActionRecoveryControl.objects.filter(pk=row.pk).first()
        again = holds and row.version == held.generation + 1 and row.started_at == started_at
        if control is None:
            raise errors.DispatchRepositoryError
        if again and control.status != "resolved" and control.execution_version == row.version:
            return found
        raise errors.DispatchFenceRejected
    if row.status != "leased" or row.lease_expires_at is None or started_at >= row.lease_expires_at:
        raise errors.DispatchFenceRejected
    snapshots.require_consumed(dispatch)
    _write(found, started_at, held, status="executing", eligible_at=None, started_at=started_at)
    check_control(
        ApprovedActionRecoveryControl(
            dispatch=row,
            project_id=row.project_id,
            execution_version=row.version,
            status="armed",
            next_scan_at=row.lease_expires_at,
            created_at=started_at,
            updated_at=started_at,
        )
    ).save(force_insert=True)
    return found


def renew(held: Held, now: datetime, duration_ms: int = LEASE_MS) -> Snapshot:
    """Extends a lease, late too, as long as nobody took it over; recovery waits for the new end.

    Raises DispatchFenceRejected and what `claim` raises.
    """
    _check(held, now)
    values.whole("duration_ms", duration_ms, 1, MAX_LEASE_MS, _REFUSAL)
    return _renew(held, now, duration_ms)


@kept(errors.DispatchRepositoryError)
def _renew(held: Held, now: datetime, duration_ms: int) -> Snapshot:
    found = _existing(held)
    row = found.execution
    if row.status not in ("leased", "executing") or (row.started_at is not None and now < row.started_at):
        raise errors.DispatchFenceRejected
    expires_at = now + timedelta(milliseconds=duration_ms)
    eligible_at = expires_at if row.status == "leased" else None
    before = row.version
    _write(found, now, held, eligible_at=eligible_at, lease_expires_at=expires_at)
    if row.status == "executing":
        control = _control(found, before)
        # Whoever looks for evidence just now works with a version that is gone.
        move_control(
            control, now, errors.DispatchFenceRejected, execution_version=row.version, status="armed",
            next_scan_at=expires_at, **NO_LEASE,
        )  # fmt: skip
    return found


def release_before_start(
    held: Held,
    result_mutation_id: str,
    result_code: str,
    at: datetime,
    retry_at: datetime | None = None,
) -> Snapshot:
    """Gives an execution back that did not pass the barrier: to be tried at `retry_at` (> `at`), or blocked.

    It is blocked too where no attempt is left. The same call again answers with the same snapshot. Raises
    DispatchFenceRejected and what `claim` raises.
    """
    _check(held, at)
    values.identifier("result_mutation_id", result_mutation_id, 64, _REFUSAL)
    values.identifier("result_code", result_code, 64, _REFUSAL)
    if retry_at is not None and values.moment("retry_at", retry_at, _REFUSAL) <= at:
        raise _REFUSAL.field("retry_at", "Must be later.")
    return _release(held, result_mutation_id, result_code, at, retry_at)


@kept(errors.DispatchRepositoryError)
def _release(
    held: Held, result_mutation_id: str, result_code: str, at: datetime, retry_at: datetime | None
) -> Snapshot:
    found = _existing(held)
    row = found.execution
    if row.status in ("retry_wait", "blocked") and row.started_at is None:
        waits = row.status == "retry_wait"
        if (
            _same_result(row, held, result_mutation_id, result_code)
            and row.updated_at == at
            and row.next_attempt_at == (retry_at if waits else None)
        ):
            return found
    if row.status != "leased" or at < row.updated_at:
        raise errors.DispatchFenceRejected
    if retry_at is not None and row.attempt_count < row.max_attempts:
        _write(
            found, at, held, status="retry_wait", eligible_at=retry_at, next_attempt_at=retry_at,
            result_mutation_id=result_mutation_id, last_result_code=result_code, **NO_LEASE,
        )  # fmt: skip
        return found
    _write(found, at, held, **_end("blocked", result_mutation_id, result_code, at), **NO_LEASE)
    ending.tell(found)
    return found


def complete(
    held: Held, result_mutation_id: str, outcome: str, result_code: str, completed_at: datetime
) -> Snapshot:
    """Ends an execution behind the barrier; `indeterminate` blocks it. Late is as good as in time, unless recovery
    was first. The same call again answers with the same snapshot.

    Raises DispatchFenceRejected and what `claim` raises.
    """
    _check(held, completed_at)
    values.identifier("result_mutation_id", result_mutation_id, 64, _REFUSAL)
    values.identifier("result_code", result_code, 64, _REFUSAL)
    values.one_of("outcome", outcome, tuple(OUTCOMES), _REFUSAL)
    return _complete(held, result_mutation_id, outcome, result_code, completed_at)


@kept(errors.DispatchRepositoryError)
def _complete(
    held: Held, result_mutation_id: str, outcome: str, result_code: str, completed_at: datetime
) -> Snapshot:
    found = _existing(held)
    row = found.execution
    again = (
        row.status == OUTCOMES[outcome] and row.started_at is not None and row.completed_at == completed_at
    )
    if again and _same_result(row, held, result_mutation_id, result_code):
        control = ApprovedActionRecoveryControl.objects.filter(pk=row.pk).first()
        if control is not None and control.resolution_mutation_id == result_mutation_id:
            return found
    if row.status != "executing" or row.started_at is None or completed_at < row.started_at:
        raise errors.DispatchFenceRejected
    before = row.version
    _write(
        found, completed_at, held,
        **_end(OUTCOMES[outcome], result_mutation_id, result_code, completed_at), **NO_LEASE,
    )  # fmt: skip
    move_control(
        _control(found, before), completed_at, errors.DispatchFenceRejected, execution_version=row.version,
        status="resolved", next_scan_at=None, resolution_mutation_id=result_mutation_id, **NO_LEASE,
    )  # fmt: skip
    ending.tell(found)
    return found


def load(dispatch_id: str) -> Snapshot | None:
    """Dispatch and execution, locked and checked; None for an unknown one."""
    row = db.lock(ApprovedActionExecution.objects.filter(pk=dispatch_id)).first()
    rows = ApprovedActionDispatch.objects.select_related("approval_request")
    dispatch = rows.filter(pk=dispatch_id).first()
    if dispatch is None:
        return None
    if row is None:
        raise errors.DispatchRepositoryError
    return snapshots.sound(dispatch, row)


def _existing(held: Held) -> Snapshot:
    found = load(held.subject.pk)
    if found is None:
        raise errors.DispatchNotFound
    return found


def _check(held: Held, at: datetime) -> None:
    values.identifier("dispatch_id", held.subject.pk, 64, _REFUSAL)
    values.identifier("lease_owner", held.owner, 128, _REFUSAL)
    values.identifier("lease_token", held.token, 128, _REFUSAL)
    values.whole("expected_version", held.generation, 0, MAX_VERSION - 1, _REFUSAL)
    values.moment("at", at, _REFUSAL)


def _same_result(row: ApprovedActionExecution, held: Held, mutation_id: str, code: str) -> bool:
    return (row.version, row.result_mutation_id, row.last_result_code) == (
        held.generation + 1, mutation_id, code,
    )  # fmt: skip


def _end(status: str, mutation_id: str, code: str, at: datetime) -> dict[str, Any]:
    return {
        "status": status,
        "eligible_at": None,
        "next_attempt_at": None,
        "result_mutation_id": mutation_id,
        "last_result_code": code,
        "completed_at": at,
    }


def _write(found: Snapshot, at: datetime, held: Held | None = None, **changed: Any) -> None:
    move_execution(found.execution, at, errors.DispatchFenceRejected, held, **changed)


def _control(found: Snapshot, version: int) -> ApprovedActionRecoveryControl:
    """The open control of an execution that was at `version`."""
    control = ApprovedActionRecoveryControl.objects.filter(pk=found.execution.pk).first()
    if control is None:
        raise errors.DispatchRepositoryError
    if control.status == "resolved" or control.execution_version != version:
        raise errors.DispatchFenceRejected
    return control
