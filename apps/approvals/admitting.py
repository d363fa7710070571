"""Whether an approval was consumed for exactly the start that stands at the door (runs.services.door)."""

from __future__ import annotations

import hmac

from apps.approvals import plans
from apps.approvals.errors import InvalidApprovedRunAction
from apps.approvals.models import ApprovedActionExecution
from apps.approvals.records import action_of, requester_of
from apps.runs.services.door import Claim
from apps.runs.services.start import request_digest


def consumed_for(claim: Claim) -> bool:
    """Looks at the rows, whatever the caller says: dispatch behind its barrier, request consumed, the very plan."""
    approved, task = claim.approved, claim.task
    if approved is None or claim.key is None or claim.grant.actor.type != "system":
        return False
    rows = ApprovedActionExecution.objects.select_related("dispatch__approval_request")
    execution = rows.filter(pk=claim.key, status="executing", project=task.project_id).first()
    if execution is None:
        return False
    dispatch, request = execution.dispatch, execution.dispatch.approval_request
    same = (
        request.state == "consumed"
        and request.dispatch_id == dispatch.pk
        and request.pk == approved.request_id
        and action_of(request) == action_of(dispatch)
        and requester_of(request) == approved.requested_by
        and execution.started_at == approved.at
    )
    plan = plans.resolve(dispatch.action_ref) if same else None
    given = None if plan is None else plans.given_of(plan)
    if plan is None or given is None or plan.request_id != request.pk:
        return False
    try:
        digest = plans.plan_of(plan).digest
    except InvalidApprovedRunAction:
        return False
    wanted = request_digest(task.pk, given.input, given.args, plan.priority)
    return (
        digest == dispatch.action_digest
        and plan.task_id == str(task.pk)
        and plan.task_revision == task.revision.task_revision == approved.task_revision
        and hmac.compare_digest(wanted, claim.digest)
    )
