"""Roles: an append-only history per subject, and the rules of who may grant what (§5.2, §13.2, §13.3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import clock, db, ids
from apps.core.errors import InvalidInput
from apps.core.fields import MAX_VERSION
from apps.identity import queries as identity
from apps.identity.principals import PolicySubject
from apps.projects import queries
from apps.projects.errors import (
    LastOwner,
    OwnerPresent,
    OwnersOnly,
    PolicyUnavailable,
    ProjectArchived,
    ProjectNotFound,
    RoleMutationConflict,
    RoleVersionConflict,
)
from apps.projects.models import Project, ProjectRoleBinding, Role
from apps.projects.policy import MUTATION_ID, Grant, confirm

CONSOLE = PolicySubject("system", "console")


@dataclass(frozen=True)
class Binding:
    """One version of a subject's role; `role` is None exactly when revoked. Raises InvalidInput."""

    project_id: str
    subject: PolicySubject
    version: int
    role: str | None
    mutation_id: str
    changed_by: PolicySubject
    created_at: datetime

    def __post_init__(self) -> None:
        if not ids.is_text_id(self.project_id, 128):
            raise InvalidInput.field("project_id", _("Not a project id."))
        if not isinstance(self.version, int) or not 1 <= self.version <= MAX_VERSION:
            raise InvalidInput.field("version", _("Not a version."))
        if self.role is not None and self.role not in Role.values:
            raise InvalidInput.field("role", _("Not a role."))
        if MUTATION_ID.fullmatch(self.mutation_id) is None:
            raise InvalidInput.field("mutation_id", _("1 to 64 characters: letters, digits, . _ : -"))

    @property
    def state(self) -> str:
        """`active` or `revoked`."""
        return "revoked" if self.role is None else "active"


@dataclass(frozen=True)
class Appended:
    """What an append did: `existing` is the replay of a finished request."""

    outcome: Literal["inserted", "existing"]
    binding: Binding


@db.write_transaction
def append_role_binding(expected_version: int, binding: Binding) -> Appended:
    """Appends one version; `expected_version` 0 means that the subject has none yet (§5.2).

    The caller has decided and confirmed the right, and records the audit entry. Raises RoleVersionConflict,
    RoleMutationConflict, ProjectNotFound, PolicyUnavailable.
    """
    if binding.version != expected_version + 1:
        raise RoleVersionConflict
    # The lock keeps a second writer of this project out, so that no unique violation can happen below.
    project = db.lock(Project.objects.filter(pk=binding.project_id)).first()
    stored = _of_mutation(binding.project_id, binding.mutation_id)
    if stored is not None:
        if stored != binding:
            raise RoleMutationConflict
        return Appended("existing", stored)
    if project is None:
        raise ProjectNotFound
    if _current_version(binding.project_id, binding.subject) != expected_version:
        raise RoleVersionConflict
    ProjectRoleBinding.objects.create(
        project=project,
        subject_type=binding.subject.type,
        subject_id=binding.subject.id,
        version=binding.version,
        state=binding.state,
        role=binding.role,
        mutation_id=binding.mutation_id,
        changed_by_type=binding.changed_by.type,
        changed_by_id=binding.changed_by.id,
        created_at=binding.created_at,
    )
    return Appended("inserted", binding)


@db.write_transaction
def change_role(
    grant: Grant, subject: PolicySubject, role: str | None, *, expected_version: int, mutation_id: str
) -> Appended:
    """Grants, changes or (role None) revokes a role under `policy.manage`.

    A repeated `mutation_id` with the same content returns the first result with its first time. Raises
    PolicyFenceConflict, OwnersOnly, LastOwner, ProjectArchived (grants only), InvalidInput for a user who does
    not exist, and what `append_role_binding` raises.
    """
    project = db.lock(Project.objects.filter(pk=grant.project_id)).first()
    confirm(grant, "policy.manage")
    first = _of_mutation(grant.project_id, mutation_id)
    binding = Binding(
        project_id=grant.project_id,
        subject=subject,
        version=expected_version + 1,
        role=role,
        mutation_id=mutation_id,
        changed_by=grant.actor,
        created_at=first.created_at if first else clock.now(),
    )
    if first is not None:
        return append_role_binding(expected_version, binding)
    if project is not None and project.status != Project.Status.ACTIVE and role is not None:
        raise ProjectArchived
    previous = _current_role(grant.project_id, subject)
    require_owner_for(grant, role, previous)
    if previous == Role.OWNER and role != Role.OWNER and not _has_other_owner(grant.project_id, subject):
        raise LastOwner
    if role is not None and subject.type == "user":
        _require_user(subject)
    appended = append_role_binding(expected_version, binding)
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action="role.revoked" if role is None else "role.granted",
        subject=subject.pair,
        metadata={
            "role": role, "previous_role": previous, "version": binding.version, "mutation_id": mutation_id,
        },
        origin=grant.origin,
    )  # fmt: skip
    return appended


@db.write_transaction
def shut_out(subject: PolicySubject, *, leave_ownerless: bool, actor: PolicySubject, origin: str) -> None:
    """What a subject leaves behind that is about to be disabled: no active project without an owner by a slip.

    With `leave_ownerless` the projects are left so, and their audit trails say it; at the console `recover_owner`
    names another. The caller holds the subject's row and disables it in the same transaction. Raises LastOwner,
    which names the projects by `projects`.
    """
    owned = queries.current_bindings().filter(
        subject_type=subject.type, subject_id=subject.id, role=Role.OWNER
    )
    # Whoever revokes the other owner at this moment holds the same rows.
    list(db.lock(Project.objects.filter(pk__in=list(owned.values_list("project", flat=True))).order_by("pk")))
    alone = queries.owned_alone(subject)
    if alone and not leave_ownerless:
        raise LastOwner(
            _(
                "Nobody else owns a project of theirs. Name another owner first, or say that it may have none."
            ),
            projects=[project.slug for project in alone],
        )
    for project in alone:
        audit.record(
            project.pk,
            actor=actor.pair,
            action="owner.shut_out",
            subject=subject.pair,
            origin=origin,
        )


@db.write_transaction
def recover_ownership(project_id: str, subject: PolicySubject) -> Appended:
    """Makes a person owner of a project that nobody owns who could act; for the console alone (§5.4, §13.2).

    Raises ProjectNotFound, OwnerPresent, InvalidInput for somebody who does not exist or is disabled.
    """
    if db.lock(Project.objects.filter(pk=project_id)).first() is None:
        raise ProjectNotFound
    if queries.acting_owners().filter(project=project_id, subject_type="user").exists():
        raise OwnerPresent
    _require_user(subject, active=True)
    version = _current_version(project_id, subject)
    binding = Binding(
        project_id, subject, version + 1, Role.OWNER, f"owner-recovery:{ids.token(16)}", CONSOLE, clock.now()
    )
    appended = append_role_binding(version, binding)
    audit.record(
        project_id,
        actor=CONSOLE.pair,
        action="owner.recovered",
        subject=subject.pair,
        metadata={"version": binding.version, "mutation_id": binding.mutation_id},
        origin="command",
    )
    return appended


def require_owner_for(grant: Grant, *roles: str | None) -> None:
    """Raises OwnersOnly where ownership is among the roles and the grant is not an owner's (§13.3)."""
    if Role.OWNER in roles and not queries.is_owner(grant.project_id, grant.actor):
        raise OwnersOnly


def stored_binding(row: ProjectRoleBinding) -> Binding:
    """A row as a value; raises PolicyUnavailable where it breaks its own rules."""
    try:
        binding = Binding(
            project_id=row.project_id,
            subject=PolicySubject(row.subject_type, row.subject_id),
            version=row.version,
            role=row.role,
            mutation_id=row.mutation_id,
            changed_by=PolicySubject(row.changed_by_type, row.changed_by_id),
            created_at=row.created_at,
        )
    except InvalidInput as error:
        raise PolicyUnavailable from error
    if binding.state != row.state:
        raise PolicyUnavailable
    return binding


def _of_mutation(project_id: str, mutation_id: str) -> Binding | None:
    row = ProjectRoleBinding.objects.filter(project=project_id, mutation_id=mutation_id).first()
    return None if row is None else stored_binding(row)


def _current_version(project_id: str, subject: PolicySubject) -> int:
    versions = ProjectRoleBinding.objects.filter(
        project=project_id, subject_type=subject.type, subject_id=subject.id
    ).order_by("-version")
    return versions.values_list("version", flat=True).first() or 0


def _current_role(project_id: str, subject: PolicySubject) -> str | None:
    rows = ProjectRoleBinding.objects.filter(
        project=project_id, subject_type=subject.type, subject_id=subject.id
    ).order_by("-version")
    return rows.values_list("role", flat=True).first()


def _has_other_owner(project_id: str, subject: PolicySubject) -> bool:
    """Whether somebody else owns the project and could act."""
    others = queries.acting_owners().filter(project=project_id)
    return others.exclude(subject_type=subject.type, subject_id=subject.id).exists()


def _require_user(subject: PolicySubject, *, active: bool = False) -> None:
    found = identity.find_subject(subject.id)
    if found is None or found.type != subject.type or (active and found.status != "active"):
        raise InvalidInput.field("subject_id", _("There is no such person."))
