"""What an ended execution leaves for others: a note for whoever shows it, and a line in the audit trail."""

from __future__ import annotations

from apps.approvals.contract import Snapshot
from apps.approvals.services.lapsing import ACTOR, CHANGED, ORIGIN
from apps.audit import services as audit
from apps.core import participants


def tell(
    found: Snapshot, *, actor: tuple[str, str] = ACTOR, origin: str = ORIGIN, recovered: bool = False
) -> None:
    """Inside the transaction of the end; `actor` is the person who closed it by hand, else the system."""
    dispatch, row = found.dispatch, found.execution
    audit.record(
        dispatch.project_id,
        actor=actor,
        action=f"approval.action_{row.status}" if actor == ACTOR else "approval.closed_by_hand",
        subject=("approval", dispatch.approval_request_id),
        metadata={
            "dispatch": dispatch.pk,
            "action_type": dispatch.action_type,
            "status": row.status,
            "result_code": row.last_result_code,
            "attempt": row.attempt_count,
            "recovered": recovered,
        },
        origin=origin,
        on_behalf_of=f"{dispatch.requested_by_type}:{dispatch.requested_by_id}" if actor == ACTOR else None,
    )
    participants.note(CHANGED, dispatch.approval_request_id)
