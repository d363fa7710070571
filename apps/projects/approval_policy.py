"""How a project decides about what needs an approval, read as values (docs/approvals.md).

Beyond approvals.md, and never less than it: who decides only becomes fewer, how many must agree only becomes more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef

from apps.identity.models import IdentitySubject
from apps.identity.principals import PolicySubject
from apps.projects import permissions
from apps.projects.models import ProjectApprovalPolicy, ProjectRoleBinding
from apps.projects.queries import current_bindings

DECIDE = "approval.decide"
START = "run.start"
MOST = 200


@dataclass(frozen=True)
class ApprovalPolicy:
    """What holds in a project; `version` 0 where nobody ever changed it. `remind_before_minutes` 0: no reminders."""

    project_id: str
    version: int = 0
    quorum: int = 1
    decider_roles: tuple[str, ...] = ("owner", "admin")
    decider_people: tuple[str, ...] = ()
    exempt_roles: tuple[str, ...] = ()
    break_glass_roles: tuple[str, ...] = ()
    remind_before_minutes: int = 30
    changed_by: tuple[str, str] | None = None
    updated_at: datetime | None = None

    def lets_decide(self, subject_id: str, role: str | None) -> bool:
        """Whether a person of this role decides here: named by role or by themselves, and never without the right."""
        named = role in self.decider_roles or subject_id in self.decider_people
        return named and role in permissions.find(DECIDE).roles


def of(project_id: str) -> ApprovalPolicy:
    """The policy of a project; one query."""
    return of_many([project_id])[project_id]


def of_many(project_ids: Iterable[str]) -> dict[str, ApprovalPolicy]:
    """The policies of projects, by id; one query."""
    wanted = set(project_ids)
    found = {row.pk: read(row) for row in ProjectApprovalPolicy.objects.filter(pk__in=wanted)}
    return {project_id: found.get(project_id) or ApprovalPolicy(project_id) for project_id in wanted}


def read(row: ProjectApprovalPolicy) -> ApprovalPolicy:
    """A stored policy as a value."""
    return ApprovalPolicy(
        row.project_id,
        row.version,
        row.quorum,
        _roles(row.decider_roles),
        tuple(row.decider_people),
        _roles(row.exempt_roles),
        _roles(row.break_glass_roles),
        row.remind_before_minutes,
        (row.changed_by_type, row.changed_by_id),
        row.updated_at,
    )


def role_of(subject: PolicySubject, project_id: str) -> str | None:
    """The role that somebody has now, None without one; one query."""
    rows = ProjectRoleBinding.objects.filter(
        project=project_id, subject_type=subject.type, subject_id=subject.id
    )
    return rows.order_by("-version").values_list("role", flat=True).first()


def possible_deciders(policy: ApprovalPolicy, *, among: Iterable[str] | None = None) -> list[str]:
    """Subject ids of the people who could decide now, of all or `among` some, at most MOST of all; one query at most.

    Who was disabled does not count, and neither does anything that is no person.
    """
    chosen = None if among is None else set(among)
    if chosen is not None and not chosen:
        return []
    alive = IdentitySubject.objects.filter(
        pk=OuterRef("subject_id"), type="user", status=IdentitySubject.Status.ACTIVE
    )
    rows = current_bindings().filter(
        Exists(alive),
        project=policy.project_id,
        subject_type="user",
        role__in=permissions.find(DECIDE).roles,
    )
    if chosen is not None:
        rows = rows.filter(subject_id__in=chosen)
    found = rows.order_by("subject_id").values_list("subject_id", "role")
    able = [pk for pk, role in found if policy.lets_decide(pk, role)]
    return able[:MOST] if chosen is None else able


def may_decide(subject: PolicySubject, policy: ApprovalPolicy) -> bool:
    """Whether somebody could decide in the project now, apart from what they asked for themselves; one query."""
    return subject.type == "user" and bool(possible_deciders(policy, among=[subject.id]))


def _roles(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
