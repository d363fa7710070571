"""Writing down that an open request came to nothing by itself, so that both sides see why."""

from __future__ import annotations

from datetime import datetime

from apps.approvals import plans, standing
from apps.approvals.models import ApprovalLapse, ApprovalRequest
from apps.audit import services as audit
from apps.core import clock, db, participants
from apps.core.db import write_transaction

# Noted with a request's id after every change, for whoever tells or shows it.
CHANGED = "approval.changed"
ACTOR = ("system", "approvals")
ORIGIN = "approvals"
OPEN = ("pending", "approved")
_ACTIONS = {standing.EXPIRED: "approval.expired", standing.WITHDRAWN: "approval.withdrawn"}


def reason(request: ApprovalRequest, *, lock: bool = False) -> str | None:
    """Why an open request no longer stands, beside its expiry; None while it does, and for plans that are not ours."""
    lapse = ApprovalLapse.objects.filter(pk=request.pk).first()
    if lapse is not None:
        return lapse.code
    plan = plans.resolve(request.action_ref)
    if plan is None:
        return None
    if (plan.request_id, plan.project_id, plan.action_digest, plan.preview_digest) != (
        request.pk, request.project_id, request.action_digest, request.preview_digest,
    ):  # fmt: skip
        return "plan_changed"
    return standing.changed(plan, request.permission, lock=lock)


def lapse(
    request: ApprovalRequest,
    code: str,
    now: datetime,
    *,
    actor: tuple[str, str] = ACTOR,
    origin: str = ORIGIN,
) -> None:
    """Writes it down once, inside the caller's transaction that holds the request's row."""
    _row, created = ApprovalLapse.objects.get_or_create(
        pk=request.pk, defaults={"project_id": request.project_id, "code": code, "lapsed_at": now}
    )
    if not created:
        return
    audit.record(
        request.project_id,
        actor=actor,
        action=_ACTIONS.get(code, "approval.voided"),
        subject=("approval", request.pk),
        metadata={"reason": code, "state": request.state, "action_type": request.action_type},
        origin=origin,
        on_behalf_of=f"{request.requested_by_type}:{request.requested_by_id}" if actor == ACTOR else None,
    )
    participants.note(CHANGED, request.pk)


@write_transaction
def settle(request_id: str) -> str | None:
    """Looks at one open request and writes down why it lapsed, if it did; returns the code."""
    rows = ApprovalRequest.objects.filter(pk=request_id)
    project_id = rows.values_list("project_id", flat=True).get()
    db.lock_shared("projects", "id", project_id)
    request = db.lock(rows).get()
    now = clock.now()
    if request.state not in OPEN:
        return None
    code = standing.EXPIRED if request.expires_at <= now else reason(request)
    if code is not None:
        lapse(request, code, now)
    return code
