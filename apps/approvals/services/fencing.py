"""The one conditional write of executions and controls: at the version that was read, by whoever holds the row."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apps.approvals import values
from apps.approvals.action_records import check_control, check_execution
from apps.approvals.contract import SHAPE, Held, HeldControl
from apps.approvals.models import ApprovedActionExecution, ApprovedActionRecoveryControl
from apps.approvals.models.execution import LEASE, MAX_LEASE_MS
from apps.core import leases
from apps.core.errors import DomainError

NO_LEASE: dict[str, None] = dict.fromkeys(LEASE)


def check_claim(
    dispatch_id: str, owner: str, token: str, now: datetime, duration_ms: int, refusal: values.Refusal
) -> None:
    """What a lease may be asked with; raises `refusal`."""
    values.identifier("dispatch_id", dispatch_id, 64, refusal)
    values.identifier("lease_owner", owner, 128, refusal)
    values.identifier("lease_token", token, 128, refusal)
    values.moment("now", now, refusal)
    values.whole("duration_ms", duration_ms, 1, MAX_LEASE_MS, refusal)


def move_execution(
    row: ApprovedActionExecution,
    at: datetime,
    refusal: type[DomainError],
    held: Held | None = None,
    **changed: Any,
) -> None:
    """Moves the row on, in memory too, if it still is what was read and, with `held`, the holder's.

    Raises `refusal`, and InvalidApprovedActionExecution for what it must not become.
    """
    rows = ApprovedActionExecution.objects.filter(pk=row.pk, version=row.version, status=row.status)
    if held is not None:
        rows = leases.unreplaced(rows, held, shape=SHAPE)
    written = _apply(row, at, changed)
    check_execution(row)
    if rows.update(**written) != 1:
        raise refusal


def move_control(
    row: ApprovedActionRecoveryControl,
    at: datetime,
    refusal: type[DomainError],
    held: HeldControl | None = None,
    **changed: Any,
) -> None:
    """The same for a control; its execution is locked. Raises `refusal` and InvalidApprovedActionRecovery."""
    rows = ApprovedActionRecoveryControl.objects.filter(pk=row.pk, version=row.version, status=row.status)
    if held is not None:
        rows = leases.unreplaced(rows, held, shape=SHAPE)
    written = _apply(row, at, changed)
    check_control(row)
    if rows.update(**written) != 1:
        raise refusal


def _apply(
    row: ApprovedActionExecution | ApprovedActionRecoveryControl, at: datetime, changed: dict[str, Any]
) -> dict[str, Any]:
    written = {**changed, "version": row.version + 1, "updated_at": at}
    for name, value in written.items():
        setattr(row, name, value)
    return written
