"""Filing a request to start a task: the server builds plan, preview and digests (api.md, architecture.md §9)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext_lazy as _

from apps.approvals import gate, plans, registry, values
from apps.approvals.errors import ApprovalPolicyDenied, InvalidApprovalValue, MutationConflict, TooManyOpen
from apps.approvals.models import ApprovalRequest, ApprovedActionPlan
from apps.approvals.plans import Given, Plan
from apps.approvals.records import Action, requester_of
from apps.approvals.services import creating
from apps.approvals.services.creating import Filed, NewRequest
from apps.approvals.transactions import tried
from apps.core import canonical, clock, db, ids
from apps.identity.principals import PolicySubject, Principal
from apps.projects import policy
from apps.projects.policy import Grant
from apps.runs import payloads
from apps.runs.errors import TaskArchived, TaskDisabled
from apps.runs.services import door
from apps.tasks import placement, queries, revisions
from apps.tasks.models import Task

RUN_CREATE = "run.create"
DEFAULT_LIFE_MS = 3_600_000
# Whoever asks cannot bury what others asked for.
MAX_OPEN = 100


@dataclass(frozen=True)
class Wish:
    """What an API caller sends; `task` is an id or short name, without `risk` it is that of the action type."""

    id: str
    task: str
    action_type: str = RUN_CREATE
    input: Mapping[str, Any] | None = field(default=None, repr=False)
    args: Sequence[str] = field(default=(), repr=False)
    priority: int | None = None
    risk: str = ""
    expires_in_ms: int = DEFAULT_LIFE_MS

    def asked(self) -> dict[str, Any]:
        """What a repetition must have in common with it, besides the task and what is sealed."""
        return {"priority": self.priority, "risk": self.risk, "expires_in_ms": self.expires_in_ms}


def file_request(
    principal: Principal, project_id: str, wish: Wish, *, origin: str, secrets: bool = True
) -> Filed:
    """Files a request to start a task as it is now, or finds the same one.

    Who may act alone may ask only where the task needs an approval whoever starts it.

    `secrets` False: the credential is not for using secrets, so not for tasks that name some either. Raises what
    `creating.create` raises, InvalidInput, InputTooLarge, NotFound for the task, TaskArchived, TaskDisabled, and
    TooManyOpen.
    """
    principal.require_active()
    if values.identifier("id", wish.id, 64).startswith(door.RESERVED):
        raise InvalidApprovalValue.field("id", _("This id is for requests of triggers."))
    return file_for(principal.subject, project_id, wish, origin=origin, secrets=secrets)


def file_for(
    subject: PolicySubject, project_id: str, wish: Wish, *, origin: str, secrets: bool = True
) -> Filed:
    """The same for whoever a trigger acts for; joins the caller's transaction."""
    kind = registry.find(wish.action_type)
    wish = replace(wish, risk=wish.risk or kind.risk)
    values.one_of("risk", wish.risk, values.RISKS)
    if kind.name != RUN_CREATE:
        raise InvalidApprovalValue.field("action_type", "Not an action that can be asked for here.")
    values.whole("expires_in_ms", wish.expires_in_ms, 1, kind.longest_life_ms)
    plans.check_priority(wish.priority)
    payloads.check(wish.input, wish.args)
    admitted, effect = gate.look(subject, project_id, kind.permission, gate.CARRIED_OUT)
    return _file(wish, admitted, origin, secrets, effect not in kind.filed_on)


@tried
def _file(wish: Wish, admitted: Grant, origin: str, may_use_secrets: bool, may_start: bool) -> Filed:
    found = creating.find(wish.id)
    if found is not None:
        if not _repeated(found, wish, admitted):
            raise MutationConflict
        return Filed(found, existing=True)
    gate.hold(admitted)
    _check_room(admitted)
    task = queries.find(admitted.project_id, wish.task)
    db.lock_shared(Task._meta.db_table, "id", str(task.pk))
    task = Task.objects.select_related("project", "revision").get(pk=task.pk)
    if may_start and not task.requires_approval:
        raise ApprovalPolicyDenied(_("You may do this without asking."))
    if task.archived_at is not None:
        raise TaskArchived
    if not task.enabled:
        raise TaskDisabled
    request = _request(wish, admitted, task, may_use_secrets)
    return creating.insert(request, origin)


def _request(wish: Wish, admitted: Grant, task: Task, may_use_secrets: bool) -> NewRequest:
    """Stores input, plan and preview; what is left is the request itself."""
    revision = revisions.read(task.revision)
    secrets = plans.secret_versions(revision)
    if secrets and not (may_use_secrets and _role_uses_secrets(admitted)):
        raise ApprovalPolicyDenied(
            _("The task names secrets, and you may not use secrets here (secret.use).")
        )
    given = Given.salted(wish.input, wish.args)
    payload_id = ids.uuid7()
    plans.seal(admitted.project_id, wish.id, payload_id, given)
    snapshot = plans.snapshot(revision, secrets)
    plan = Plan(
        action_ref=f"plan:{ids.uuid7()}",
        project_id=admitted.project_id,
        task_id=str(task.pk),
        task_revision=revision.task_revision,
        executor_type=revision.executor_type,
        priority=task.priority if wish.priority is None else wish.priority,
        task_name=task.name,
        task_snapshot_ref=plans.snapshot_ref(snapshot),
        input_ref=plans.input_ref(payload_id, given),
    )
    kind = registry.find(wish.action_type)
    now = clock.now()
    preview = canonical.dumps(
        {
            "schema_version": 1,
            "action_type": kind.name,
            "permission": kind.permission,
            "project": {"id": task.project.pk, "slug": task.project.slug, "name": task.project.name},
            "task": {"id": plan.task_id, "slug": task.slug, "name": task.name},
            "task_revision": plan.task_revision,
            "revision_digest": revision.digest,
            "executor_type": plan.executor_type,
            "requires": placement.document(revision.execution.requires),
            "priority": plan.priority,
            "input_ref": plan.input_ref,
            "has_input": wish.input is not None,
            "args": len(wish.args),
            "secrets": [secret.document() for secret in secrets],
            "risk": wish.risk,
            "requested_by": {"type": admitted.actor.type, "id": admitted.actor.id},
            "requested_at_ms": clock.to_ms(now),
            "expires_at_ms": clock.to_ms(now + timedelta(milliseconds=wish.expires_in_ms)),
        }
    )
    preview_digest = canonical.sha256(preview)
    assert admitted.fence is not None and admitted.fence.binding_version is not None
    ApprovedActionPlan.objects.create(
        action_ref=plan.action_ref,
        project_id=plan.project_id,
        task_id=plan.task_id,
        task_revision=plan.task_revision,
        executor_type=plan.executor_type,
        priority=plan.priority,
        task_name=plan.task_name,
        task_snapshot_ref=plan.task_snapshot_ref,
        input_ref=plan.input_ref,
        action_type=kind.name,
        action_digest=plan.digest,
        request_id=wish.id,
        input_payload_id=payload_id,
        wish_digest=given.wish_digest(**wish.asked()),
        snapshot=snapshot,
        preview=preview,
        preview_digest=preview_digest,
        requested_by_type=admitted.actor.type,
        requested_by_id=admitted.actor.id,
        requester_binding_version=admitted.fence.binding_version,
        created_at=now,
    )
    action = Action(kind.permission, kind.name, plan.action_ref, plan.digest, preview_digest)
    return NewRequest(wish.id, admitted.project_id, action, wish.risk, admitted.actor, wish.expires_in_ms)


def _repeated(row: ApprovalRequest, wish: Wish, admitted: Grant) -> bool:
    """Whether a stored request was filed by the same subject with the same words."""
    plan = plans.resolve(row.action_ref)
    if plan is None or row.project_id != admitted.project_id or requester_of(row) != admitted.actor:
        return False
    preview = plans.preview_of(plan)
    first = plans.given_of(plan)
    if first is None or preview is None or wish.task not in (plan.task_id, preview["task"]["slug"]):
        return False
    again = Given(wish.input, tuple(wish.args), first.salt).wish_digest(**wish.asked())
    return hmac.compare_digest(again, plan.wish_digest)


def _role_uses_secrets(admitted: Grant) -> bool:
    """Asking for a start asks for the secrets of the task too: the same role must carry both."""
    found = policy.decide(admitted.actor, admitted.project_id, policy.SECRET_USE)
    return found.effect in gate.CARRIED_OUT and found.fence == admitted.fence


def _check_room(admitted: Grant) -> None:
    waiting = ApprovalRequest.objects.filter(
        project=admitted.project_id,
        state=ApprovalRequest.State.PENDING,
        expires_at__gt=clock.now(),
        requested_by_type=admitted.actor.type,
        requested_by_id=admitted.actor.id,
        lapse__isnull=True,
    )
    if len(waiting.values_list("pk", flat=True)[:MAX_OPEN]) == MAX_OPEN:
        raise TooManyOpen(retry_after=60)
