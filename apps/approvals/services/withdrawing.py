"""Taking back what one asked for, where the action type lets one (docs/approvals.md, upper-floors.md §7.14).

It is a lapse, not a state: the states of a request are those of approvals.md §4, and nothing is decided here.
"""

from __future__ import annotations

from apps.approvals import errors, registry, standing
from apps.approvals.models import ApprovalLapse, ApprovalRequest
from apps.approvals.records import requester_of, sound
from apps.approvals.services import lapsing
from apps.approvals.transactions import tried
from apps.core import clock, db
from apps.core.errors import Forbidden
from apps.identity.principals import Principal


def withdraw(principal: Principal, request_id: str, *, origin: str) -> ApprovalRequest:
    """Takes back a pending request; again, it finds it taken back.

    Only who asked can, whatever their role is by now. Raises PrincipalExpired, ApprovalRequestNotFound, Forbidden,
    NotWithdrawable, RequestExpired, RequestStateConflict (decided, or only partly: votes do not stand in the way),
    RequestVoid or ApprovalUnavailable.
    """
    principal.require_active()
    return _withdraw(principal, request_id, origin)


@tried
def _withdraw(principal: Principal, request_id: str, origin: str) -> ApprovalRequest:
    rows = ApprovalRequest.objects.filter(pk=request_id)
    project_id = rows.values_list("project_id", flat=True).first()
    if project_id is None:
        raise errors.ApprovalRequestNotFound
    db.lock_shared("projects", "id", project_id)
    request = sound(db.lock(rows).get())
    if requester_of(request) != principal.subject:
        raise Forbidden
    kind = registry.TYPES.get(request.action_type)
    if kind is None or not kind.withdrawable:
        raise errors.NotWithdrawable
    before = ApprovalLapse.objects.filter(pk=request.pk).values_list("code", flat=True).first()
    if before == standing.WITHDRAWN:
        return request
    now = clock.now()
    if request.state != ApprovalRequest.State.PENDING:
        raise errors.RequestStateConflict
    if before is not None and before != standing.EXPIRED:
        raise errors.RequestVoid(reason=before)
    if request.expires_at <= now:
        raise errors.RequestExpired
    lapsing.lapse(request, standing.WITHDRAWN, now, actor=principal.subject.pair, origin=origin)
    return request
