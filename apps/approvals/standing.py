"""Whether what was asked for is still what would happen (issue of the house: everything that changes it voids it).

Asked when somebody decides, when an approval is consumed, when the action is inspected and started, and by a job.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.approvals import gate, plans
from apps.approvals.models import ApprovedActionPlan
from apps.core import db, ids
from apps.core.errors import InvalidInput
from apps.identity.models import IdentitySubject
from apps.identity.principals import PolicySubject
from apps.projects import policy
from apps.tasks import revisions
from apps.tasks.errors import RevisionCorrupt
from apps.tasks.models import Task
from apps.tasks.revisions import Revision

EXPIRED = "expired"
WITHDRAWN = "withdrawn"
REASONS: dict[str, str | Promise] = {
    EXPIRED: _("Nobody decided, or it was not carried out, in time."),
    WITHDRAWN: _("Who asked took it back."),
    "project_archived": _("The project was archived."),
    "requester_role_changed": _("The role of who asked has changed."),
    "requester_disabled": _("Who asked was disabled."),
    "task_missing": _("The task is not there any more."),
    "task_archived": _("The task was archived."),
    "task_disabled": _("The task was disabled."),
    "task_revision_changed": _("The task was changed."),
    "secret_version_changed": _("A secret that the task uses was changed."),
    "input_changed": _("The input is not what it was."),
    "plan_changed": _("The plan is not what it was."),
}


def changed(row: ApprovedActionPlan, permission: str, *, lock: bool = False) -> str | None:
    """The code of what no longer is as it was when the request was filed, or None.

    With `lock`, inside a transaction that holds the project (`gate.hold`), the task cannot change until it ends.
    Raises what policy and vault raise where they cannot tell.
    """
    try:
        plan = plans.plan_of(row)
    except InvalidInput:
        return "plan_changed"
    if plan.digest != row.action_digest or plans.preview_of(row) is None:
        return "plan_changed"
    return _requester(row, permission) or _task(row, lock=lock) or _given(row)


def _requester(row: ApprovedActionPlan, permission: str) -> str | None:
    subject = PolicySubject(row.requested_by_type, row.requested_by_id)
    found = policy.decide(subject, row.project_id, permission)
    if found.reason in ("project_archived", "project_not_found"):
        return "project_archived"
    if found.effect not in gate.CARRIED_OUT or found.fence is None:
        return "requester_role_changed"
    if found.fence.binding_version != row.requester_binding_version:
        return "requester_role_changed"
    if IdentitySubject.objects.filter(pk=subject.id, status=IdentitySubject.Status.DISABLED).exists():
        return "requester_disabled"
    return None


def _task(row: ApprovedActionPlan, *, lock: bool) -> str | None:
    task_id: UUID | None = ids.parse_uuid(row.task_id)
    if task_id is None:
        return "task_missing"
    if lock:
        db.lock_shared(Task._meta.db_table, "id", row.task_id)
    task: Any = Task.objects.filter(pk=task_id, project=row.project_id).select_related("revision").first()
    if task is None:
        return "task_missing"
    if task.archived_at is not None:
        return "task_archived"
    if not task.enabled:
        return "task_disabled"
    if task.revision.task_revision != row.task_revision:
        return "task_revision_changed"
    try:
        revision = revisions.read(task.revision)
    except RevisionCorrupt:
        return "task_revision_changed"
    return _snapshot(row, revision)


def _snapshot(row: ApprovedActionPlan, revision: Revision) -> str | None:
    now = plans.snapshot(revision, plans.secret_versions(revision))
    if now == row.snapshot and plans.snapshot_ref(now) == row.task_snapshot_ref:
        return None
    same_revision = f'"revision_digest":"{revision.digest}"' in row.snapshot
    return "secret_version_changed" if same_revision else "task_revision_changed"


def _given(row: ApprovedActionPlan) -> str | None:
    return None if plans.given_of(row) is not None else "input_changed"
