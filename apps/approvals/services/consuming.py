"""Using an approval once: request consumed, dispatch and execution there, or nothing at all (approvals.md §4.6)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from apps.approvals import errors, gate, values
from apps.approvals.models import ApprovalRequest, ApprovedActionDispatch, ApprovedActionExecution
from apps.approvals.records import (
    Action,
    action_of,
    check_dispatch,
    check_request,
    requester_of,
    sound,
    sound_dispatch,
)
from apps.approvals.services import lapsing
from apps.approvals.services.creating import find
from apps.approvals.transactions import tried
from apps.audit import services as audit
from apps.core import canonical, clock, control, db, participants, wakeups
from apps.core.jobs import CONTROL
from apps.identity.principals import PolicySubject
from apps.projects.policy import Grant

EXECUTE = "approvals.execute"
CONSUMERS = ("system", "worker")
CONSUMER = PolicySubject("system", "approvals")


@dataclass(frozen=True)
class Consumption:
    """What is to be used, presented again; raises InvalidApprovalValue."""

    request_id: str
    expected_version: int
    consumption_id: str
    dispatch_id: str
    action: Action
    requested_by: PolicySubject
    consumed_by: PolicySubject

    def __post_init__(self) -> None:
        values.identifier("id", self.request_id, 64)
        values.whole("expected_version", self.expected_version, 1, 3)
        values.identifier("consumption_id", self.consumption_id, 64)
        values.identifier("dispatch_id", self.dispatch_id, 64)

    @classmethod
    def of(cls, request: ApprovalRequest, consumer: PolicySubject = CONSUMER) -> Consumption:
        """The consumption of a request, with ids that are the same at every try."""
        return cls(
            request.pk,
            request.version,
            canonical.domain_digest("qinglong.approval-consumption.v1", request.pk),
            canonical.domain_digest("qinglong.approval-dispatch.v1", request.pk),
            action_of(request),
            requester_of(request),
            consumer,
        )


@dataclass(frozen=True)
class Consumed:
    """Request and dispatch; `existing` where the same consumption had been done before."""

    request: ApprovalRequest
    dispatch: ApprovedActionDispatch
    existing: bool


def consume(wish: Consumption) -> Consumed:
    """Uses an approved request; the time is the server's, that of the first application.

    The rights of who asked are looked at again, not those of the consumer, who must be the system or a worker.
    Raises ApprovalPolicyDenied, ApprovalRequestNotFound, RequestExpired, RequestVersionConflict,
    RequestStateConflict, MutationConflict, RequestVoid, PolicyFenceConflict or ApprovalUnavailable.
    """
    if wish.consumed_by.type not in CONSUMERS:
        raise errors.ApprovalPolicyDenied
    request = find(wish.request_id)
    if request is None:
        raise errors.ApprovalRequestNotFound
    admitted = gate.admit(wish.requested_by, request.project_id, wish.action.permission, gate.CARRIED_OUT)
    found = _consume(wish, admitted)
    if isinstance(found, str):
        raise errors.RequestVoid(reason=found)
    return found


@tried
def _consume(wish: Consumption, admitted: Grant) -> Consumed | str:
    # As in deciding: first the locks, so that a repetition at the same moment sees what the first one did.
    db.lock_shared("projects", "id", admitted.project_id)
    rows = ApprovalRequest.objects.filter(pk=wish.request_id)
    request = db.lock(rows).first()
    again = ApprovalRequest.objects.filter(consumption_id=wish.consumption_id).first()
    if again is not None:
        return _replay(sound(again), wish)
    if request is None:
        raise errors.ApprovalRequestNotFound
    sound(request)
    now = clock.now()
    if request.expires_at <= now:
        raise errors.RequestExpired
    if request.version != wish.expected_version:
        raise errors.RequestVersionConflict
    if request.state != ApprovalRequest.State.APPROVED:
        raise errors.RequestStateConflict
    if action_of(request) != wish.action or requester_of(request) != wish.requested_by:
        raise errors.MutationConflict
    gate.hold(admitted)
    if code := lapsing.reason(request, lock=True):
        lapsing.lapse(request, code, now)
        return code
    return _hand_over(request, wish, now)


def _hand_over(request: ApprovalRequest, wish: Consumption, now: datetime) -> Consumed:
    dispatch = check_dispatch(
        ApprovedActionDispatch(
            id=wish.dispatch_id,
            approval_request_id=request.pk,
            approval_request_version=3,
            project_id=request.project_id,
            permission=request.permission,
            action_type=request.action_type,
            action_ref=request.action_ref,
            action_digest=request.action_digest,
            preview_digest=request.preview_digest,
            requested_by_type=request.requested_by_type,
            requested_by_id=request.requested_by_id,
            consumed_by_type=wish.consumed_by.type,
            consumed_by_id=wish.consumed_by.id,
            created_at=now,
        )
    )
    if ApprovedActionDispatch.objects.filter(pk=dispatch.pk).exists():
        raise errors.MutationConflict
    dispatch.save(force_insert=True)
    ApprovedActionExecution(
        dispatch=dispatch, project_id=request.project_id, eligible_at=now, created_at=now, updated_at=now
    ).save(force_insert=True)
    written = {
        "version": 3,
        "state": ApprovalRequest.State.CONSUMED,
        "consumption_id": wish.consumption_id,
        "dispatch_id": dispatch.pk,
        "consumed_by_type": wish.consumed_by.type,
        "consumed_by_id": wish.consumed_by.id,
        "consumed_at": now,
    }
    for name, value in written.items():
        setattr(request, name, value)
    check_request(request)
    rows = ApprovalRequest.objects.filter(pk=request.pk, version=wish.expected_version, state="approved")
    if rows.update(**written) != 1:
        raise errors.RequestVersionConflict
    audit.record(
        request.project_id,
        actor=wish.consumed_by.pair,
        action="approval.consumed",
        subject=("approval", request.pk),
        metadata={
            "dispatch": dispatch.pk,
            "action_type": request.action_type,
            "action_digest": request.action_digest,
        },
        origin=gate.ORIGIN,
        on_behalf_of=f"{request.requested_by_type}:{request.requested_by_id}",
    )
    participants.note(lapsing.CHANGED, request.pk)
    control.soon(EXECUTE)
    wakeups.ring(CONTROL)
    return Consumed(request, dispatch, existing=False)


def _replay(request: ApprovalRequest, wish: Consumption) -> Consumed:
    dispatch = ApprovedActionDispatch.objects.filter(pk=request.dispatch_id).first()
    executions = list(ApprovedActionExecution.objects.filter(dispatch=request.dispatch_id)[:2])
    if dispatch is None or len(executions) != 1 or executions[0].project_id != request.project_id:
        raise errors.ApprovalUnavailable
    sound_dispatch(dispatch)
    same = (
        wish.expected_version == 2
        and wish.request_id == request.pk == dispatch.approval_request_id
        and dispatch.pk == wish.dispatch_id
        and dispatch.project_id == request.project_id
        and action_of(dispatch) == wish.action
        and requester_of(dispatch) == wish.requested_by
        and (dispatch.consumed_by_type, dispatch.consumed_by_id) == wish.consumed_by.pair
        and dispatch.created_at == request.consumed_at
    )
    if not same:
        raise errors.MutationConflict
    return Consumed(request, dispatch, existing=True)
