"""Roles that follow from somewhere else, such as groups at an identity provider (lessons.md D20).

A source writes as `system`/its name and touches only what it wrote itself, or what nobody decided yet: a role that
a person gave stays, and so does a person's decision to take one away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from apps.audit import services as audit
from apps.core import clock, db, ids
from apps.identity.principals import PolicySubject
from apps.projects import queries
from apps.projects.errors import PolicyUnavailable
from apps.projects.models import Project, ProjectRoleBinding, Role
from apps.projects.services.roles import Binding, append_role_binding

SOURCES = "oidc:"


@dataclass(frozen=True)
class Followed:
    """What became of one project: `changed` is False where somebody else's decision stands."""

    project_id: str
    role: str | None
    previous: str | None
    changed: bool


def follow_roles(subject: PolicySubject, source: str, wanted: Mapping[str, str]) -> list[Followed]:
    """Makes the roles that `source` gave to `subject` those in `wanted` (project id → role, never `owner`).

    Gives, changes and takes away in one transaction, with an audit entry each; nothing is locked or written where
    all is as it should be. An archived project gives no role and keeps those that are still wanted.

    Raises PolicyUnavailable.
    """
    if not source.startswith(SOURCES) or Role.OWNER in wanted.values():
        raise PolicyUnavailable
    plan = _plan(subject, source, wanted)
    return _follow(subject, source, wanted) if any(one.changed for one in plan) else plan


@db.write_transaction
def _follow(subject: PolicySubject, source: str, wanted: Mapping[str, str]) -> list[Followed]:
    first = _plan(subject, source, wanted)
    # In one order, so that two sign-ins never wait for each other.
    list(db.lock(Project.objects.filter(pk__in=[one.project_id for one in first]).order_by("pk")))
    done = _plan(subject, source, wanted)
    by = PolicySubject("system", source)
    for one in done:
        if not one.changed:
            continue
        version = _version(one.project_id, subject)
        mutation_id = str(ids.uuid7())
        append_role_binding(
            version, Binding(one.project_id, subject, version + 1, one.role, mutation_id, by, clock.now())
        )
        audit.record(
            one.project_id,
            actor=by.pair,
            action="role.revoked" if one.role is None else "role.granted",
            subject=subject.pair,
            metadata={
                "role": one.role, "previous_role": one.previous, "version": version + 1, "mutation_id": mutation_id,
            },
            origin=source,
        )  # fmt: skip
    return done


def _plan(subject: PolicySubject, source: str, wanted: Mapping[str, str]) -> list[Followed]:
    """What is to be done in each project that is wanted or was written by the source, by project."""
    rows = queries.current_bindings().filter(subject_type=subject.type, subject_id=subject.id)
    current = {row.project_id: row for row in rows}
    ours = {pk for pk, row in current.items() if row.changed_by_id == source and row.role is not None}
    active = set(
        Project.objects.filter(pk__in=wanted, status=Project.Status.ACTIVE).values_list("pk", flat=True)
    )
    found = []
    for pk in sorted(active | ours):
        row = current.get(pk)
        previous = None if row is None else row.role
        role = wanted.get(pk) if pk in active or pk not in wanted else previous
        found.append(Followed(pk, role, previous, previous != role and _is_free(row, source)))
    return found


def _is_free(row: ProjectRoleBinding | None, source: str) -> bool:
    """Whether the source may decide: nobody did, it did itself, or another source took back what it had given."""
    if row is None:
        return True
    if row.changed_by_type != "system":
        return False
    return row.changed_by_id == source or (row.role is None and row.changed_by_id.startswith(SOURCES))


def _version(project_id: str, subject: PolicySubject) -> int:
    rows = ProjectRoleBinding.objects.filter(
        project=project_id, subject_type=subject.type, subject_id=subject.id
    ).order_by("-version")
    return rows.values_list("version", flat=True).first() or 0
