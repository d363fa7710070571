"""The one decision behind panel, API, jobs and commands (projects-and-identity.md §4.3, §4.4, §5.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from django.db import DatabaseError
from django.db.models import F, FilteredRelation, Max, Q
from django.utils.translation import gettext_lazy as _

from apps.core import db, ids
from apps.core.errors import Forbidden, InvalidInput, NotFound
from apps.identity.principals import PolicySubject, Principal
from apps.projects import permissions
from apps.projects.errors import ApprovalRequired, PolicyFenceConflict, PolicyUnavailable, ProjectArchived
from apps.projects.models import Project, ProjectRoleBinding, Role

__all__ = ["Decision", "Fence", "Grant", "PolicySubject", "Principal", "authorize", "confirm", "decide"]

Effect = Literal["allow", "deny", "require_approval"]
SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?")
MUTATION_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")

SECRET_USE = "secret.use"  # noqa: S105 - the name of a permission

# What a caller who must ask files instead; a permission not named here is filed under its own name.
_ACTION_TYPES = {"run.start": "run.create"}


@dataclass(frozen=True)
class Fence:
    """What a decision rests on; a write that acts on it checks both versions again."""

    project_version: int
    binding_version: int | None


@dataclass(frozen=True)
class Decision:
    """Effect, low-sensitivity reason code, and the fence (None only where the project does not exist)."""

    effect: Effect
    reason: str
    fence: Fence | None
    # What SECRET_USE came to for the same subject, from the same look at the same rows.
    vault: Effect = field(default="deny", compare=False)


@dataclass(frozen=True)
class Grant:
    """Proof that a decision allowed `actor` one permission; services confirm it inside their transaction.

    `vault` tells what SECRET_USE came to beside it: whoever saves or starts a task that names secrets needs
    that too, and only the task tells whether it does (`confirm_secret_use`).
    """

    actor: PolicySubject
    project_id: str
    permission: str
    fence: Fence | None
    origin: str
    vault: Effect = "deny"

    @classmethod
    def system(cls, project_id: str, permission: str, actor_id: str) -> Grant:
        """The right of the scheduler and of jobs; holds while the project is active (reads: always)."""
        permissions.find(permission)
        return cls(PolicySubject("system", actor_id), project_id, permission, None, actor_id[:64], "allow")


def decide(
    subject: PolicySubject, project_id: str, permission: str, *, while_archived: bool = False
) -> Decision:
    """Decides in one query; nothing is cached.

    `while_archived` leaves out the rule for archived projects; only restoring a project, revoking roles and
    reading the audit trail pass it. Raises InvalidInput for malformed input before any query, and
    PolicyUnavailable for stored rows that break their rules or cannot be read.
    """
    right = permissions.find(permission)
    if not ids.is_text_id(project_id, 128):
        raise InvalidInput.field("project_id", _("Not a project id."))
    row = _snapshot(project_id, subject)
    if row is None:
        return Decision("deny", "project_not_found", None)
    fence = Fence(row["version"], row["current__version"])
    effect, reason = _judge(row, subject, right, while_archived)
    vault, _reason = _judge(row, subject, permissions.find(SECRET_USE), False)
    return Decision(effect, reason, fence, vault)


def _judge(
    row: dict[str, Any], subject: PolicySubject, right: permissions.Permission, while_archived: bool
) -> tuple[Effect, str]:
    if row["current__state"] != ProjectRoleBinding.State.ACTIVE:
        return "deny", "subject_unbound"
    if row["status"] == Project.Status.ARCHIVED and not (right.read or while_archived):
        return "deny", "project_archived"
    if row["current__role"] not in right.roles:
        return "deny", "permission_missing"
    if subject.type == "agent" and right.agent_asks:
        return "require_approval", "agent_action_requires_approval"
    return "allow", "role_grant"


def authorize(
    principal: Principal, project_id: str, permission: str, *, origin: str, while_archived: bool = False
) -> Grant:
    """The grant for one permission; `origin` (≤ 64 characters) names the door: api, panel, command.

    Raises PrincipalExpired, NotFound (no role in the project: masked), Forbidden, ProjectArchived,
    ApprovalRequired, and what `decide` raises.
    """
    principal.require_active()
    decision = decide(principal.subject, project_id, permission, while_archived=while_archived)
    if decision.effect == "allow":
        return Grant(principal.subject, project_id, permission, decision.fence, origin, decision.vault)
    if decision.effect == "require_approval":
        raise to_be_asked(project_id, permission, permission)
    if decision.reason in ("project_not_found", "subject_unbound"):
        raise NotFound
    if decision.reason == "project_archived":
        raise ProjectArchived
    raise Forbidden


def confirm(grant: Grant, permission: str | None = None) -> None:
    """Holds the project still and checks that the grant's decision would be the same now.

    Call it first inside the write transaction, with the permission the service needs. Raises Forbidden for a
    grant of another one, PolicyFenceConflict, and for a system grant ProjectArchived where the project is
    archived and the permission is not a read.
    """
    if permission is not None and grant.permission != permission:
        raise Forbidden
    db.lock_shared(Project._meta.db_table, "id", grant.project_id)
    now = (
        Project.objects.filter(pk=grant.project_id)
        .annotate(
            binding_version=Max(
                "bindings__version",
                filter=Q(bindings__subject_type=grant.actor.type, bindings__subject_id=grant.actor.id),
            )
        )
        .values("version", "status", "binding_version")
        .first()
    )
    if now is None:
        raise PolicyFenceConflict
    if grant.fence is None:
        if grant.actor.type != "system":
            raise PolicyFenceConflict
        if now["status"] != Project.Status.ACTIVE and not permissions.find(grant.permission).read:
            raise ProjectArchived
    elif Fence(now["version"], now["binding_version"]) != grant.fence:
        raise PolicyFenceConflict


def confirm_secret_use(grant: Grant) -> None:
    """That whoever holds a grant may use secrets too: its fence vouches for both.

    Raises Forbidden and ApprovalRequired.
    """
    if grant.vault == "require_approval":
        raise to_be_asked(grant.project_id, SECRET_USE, grant.permission)
    if grant.vault != "allow":
        raise Forbidden(_("The task names secrets, and you may not use secrets here (secret.use)."))


def to_be_asked(project_id: str, lacking: str, permission: str) -> ApprovalRequired:
    """What a caller who may only ask is told: what for, and where the same body can be filed if it can be."""
    action_type = _ACTION_TYPES.get(permission)
    where = {} if action_type is None else {"ask_at": f"/projects/{project_id}/approvals"}
    return ApprovalRequired(permission=lacking, action_type=action_type or permission, **where)


def _snapshot(project_id: str, subject: PolicySubject) -> dict[str, Any] | None:
    """The project and the subject's newest binding, checked; §5.1."""
    try:
        row = (
            Project.objects.filter(pk=project_id)
            .annotate(
                current=FilteredRelation(
                    "bindings",
                    condition=Q(bindings__subject_type=subject.type, bindings__subject_id=subject.id),
                )
            )
            .order_by(F("current__version").desc())
            .values(
                "id", "name", "slug", "status", "version", "created_at", "updated_at",
                "current__version", "current__state", "current__role", "current__mutation_id",
                "current__subject_type", "current__subject_id", "current__changed_by_type",
                "current__changed_by_id", "current__created_at",
            )
            .first()
        )  # fmt: skip
    except DatabaseError as error:
        raise PolicyUnavailable from error
    if row is None:
        return None
    found: dict[str, Any] = {**row}
    if found["id"] != project_id or not _sound_project(found) or not _sound_binding(found, subject):
        raise PolicyUnavailable
    return found


def _sound_project(row: dict[str, Any]) -> bool:
    return (
        ids.is_text_id(row["name"], 255)
        and SLUG.fullmatch(row["slug"]) is not None
        and row["status"] in Project.Status.values
        and row["version"] >= 1
        and row["updated_at"] >= row["created_at"]
    )


def _sound_binding(row: dict[str, Any], subject: PolicySubject) -> bool:
    if row["current__version"] is None:
        return row["current__state"] is None
    state, role, at = row["current__state"], row["current__role"], row["current__created_at"]
    return (
        (row["current__subject_type"], row["current__subject_id"]) == subject.pair
        and row["current__version"] >= 1
        and ((state == "active" and role in Role.values) or (state == "revoked" and role is None))
        and MUTATION_ID.fullmatch(row["current__mutation_id"]) is not None
        and row["current__changed_by_type"] is not None
        and ids.is_text_id(row["current__changed_by_id"], 255)
        and isinstance(at, datetime)
    )
