"""Reading projects and roles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet, Subquery

from apps.core import ids, pages
from apps.core.errors import NotFound
from apps.identity.models import IdentitySubject
from apps.identity.principals import PolicySubject
from apps.projects.models import Project, ProjectOwnerBootstrapChallenge, ProjectRoleBinding, Role

DEFAULT_PROJECT = "default"


def find(reference: str) -> Project:
    """The project with this id, else with this slug; raises NotFound. Says nothing about rights."""
    if not ids.is_text_id(reference, 128):
        raise NotFound
    found = list(Project.objects.filter(pk=reference)[:1]) or list(Project.objects.filter(slug=reference)[:1])
    if not found:
        raise NotFound
    return found[0]


def current_bindings() -> QuerySet[ProjectRoleBinding]:
    """The newest binding of each subject in each project, revoked ones included."""
    later = ProjectRoleBinding.objects.filter(
        project=OuterRef("project"),
        subject_type=OuterRef("subject_type"),
        subject_id=OuterRef("subject_id"),
        version__gt=OuterRef("version"),
    )
    return ProjectRoleBinding.objects.filter(~Exists(later))


def roles_of(subject: PolicySubject, project_id: str | None = None) -> list[ProjectRoleBinding]:
    """The roles a subject has now, each with its project; `project_id` limits them to one."""
    rows = current_bindings().filter(
        subject_type=subject.type, subject_id=subject.id, state=ProjectRoleBinding.State.ACTIVE
    )
    if project_id is not None:
        rows = rows.filter(project=project_id)
    return list(rows.select_related("project").order_by("project__slug"))


def visible_projects(subject: PolicySubject, project_id: str | None = None) -> QuerySet[Project]:
    """The projects a subject has a role in."""
    bound = current_bindings().filter(
        project=OuterRef("pk"),
        subject_type=subject.type,
        subject_id=subject.id,
        state=ProjectRoleBinding.State.ACTIVE,
    )
    rows = Project.objects.filter(Exists(bound))
    return rows if project_id is None else rows.filter(pk=project_id)


def page_projects(
    subject: PolicySubject,
    *,
    project_id: str | None = None,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> pages.Page[Project]:
    """The projects a subject has a role in, by slug; `project_id` limits them to one."""
    return pages.paginate(
        visible_projects(subject, project_id),
        [pages.Key("slug")],
        kind="projects",
        scope={"subject": list(subject.pair), "project": project_id},
        limit=limit,
        cursor=cursor,
    )


def page_bindings(
    project_id: str, *, history: bool = False, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[ProjectRoleBinding]:
    """Who has a role now, by subject; with `history` every version there ever was."""
    rows = (
        ProjectRoleBinding.objects.all()
        if history
        else current_bindings().filter(state=ProjectRoleBinding.State.ACTIVE)
    )
    return pages.paginate(
        rows.filter(project=project_id),
        [pages.Key("subject_type"), pages.Key("subject_id"), pages.Key("version")],
        kind="role-bindings",
        scope={"project": project_id, "history": history},
        limit=limit,
        cursor=cursor,
    )


def is_owner(project_id: str, subject: PolicySubject) -> bool:
    """Whether the subject's current role is owner."""
    return (
        current_bindings()
        .filter(project=project_id, subject_type=subject.type, subject_id=subject.id, role=Role.OWNER)
        .exists()
    )


def page_history(
    project_id: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[ProjectRoleBinding]:
    """Every change of a role there ever was, newest first; `previous_role` is what it was before (None: nothing)."""
    before = ProjectRoleBinding.objects.filter(
        project=OuterRef("project"),
        subject_type=OuterRef("subject_type"),
        subject_id=OuterRef("subject_id"),
        version=OuterRef("version") - 1,
    )
    return pages.paginate(
        ProjectRoleBinding.objects.filter(project=project_id).annotate(
            previous_role=Subquery(before.values("role")[:1])
        ),
        [pages.moment("created_at", descending=True), pages.identifier(descending=True)],
        kind="role-history",
        scope={"project": project_id},
        limit=limit,
        cursor=cursor,
    )


def acting_owners() -> QuerySet[ProjectRoleBinding]:
    """Who owns which project now and could act: a subject that is disabled, or that there is not, does not count."""
    alive = IdentitySubject.objects.filter(
        pk=OuterRef("subject_id"), type=OuterRef("subject_type"), status=IdentitySubject.Status.ACTIVE
    )
    return current_bindings().filter(Exists(alive), role=Role.OWNER)


def owned_alone(subject: PolicySubject) -> list[Project]:
    """The active projects that a subject owns and nobody else who could act, by short name; one query."""
    own = current_bindings().filter(
        project=OuterRef("pk"), subject_type=subject.type, subject_id=subject.id, role=Role.OWNER
    )
    others = (
        acting_owners()
        .filter(project=OuterRef("pk"))
        .exclude(subject_type=subject.type, subject_id=subject.id)
    )
    rows = Project.objects.filter(Exists(own), ~Exists(others), status=Project.Status.ACTIVE)
    return list(rows.order_by("slug"))


def is_claimable(project_id: str = DEFAULT_PROJECT) -> bool:
    """Whether the first owner may still come in by a challenge: no binding of any version exists."""
    return not ProjectRoleBinding.objects.filter(project=project_id).exists()


def latest_challenge(project_id: str = DEFAULT_PROJECT) -> ProjectOwnerBootstrapChallenge | None:
    """The newest owner challenge; only this one counts."""
    return ProjectOwnerBootstrapChallenge.objects.filter(project=project_id).order_by("-version").first()


def attach(project_id: str, rows: Iterable[Any]) -> None:
    """Gives the rows of one project that project, in one query.

    Not a join: SQLite's planner would begin with the projects and sort everything for one page.
    """
    rows = list(rows)
    project = Project.objects.get(pk=project_id) if rows else None
    for row in rows:
        row.project = project
