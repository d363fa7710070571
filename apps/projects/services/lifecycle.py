"""Projects: made, renamed, archived, restored (projects-and-identity.md §12)."""

from __future__ import annotations

from django.db import IntegrityError
from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import cas, clock, db, ids
from apps.core.errors import InvalidInput, NotFound
from apps.identity.principals import PolicySubject
from apps.projects.errors import SlugTaken
from apps.projects.models import Project, Role
from apps.projects.policy import SLUG, Grant, confirm
from apps.projects.services.roles import Binding, append_role_binding


@db.write_transaction
def create_project(actor: PolicySubject, *, name: str, slug: str, origin: str) -> Project:
    """A new project with `actor` as its owner. The caller has checked that it is an instance administrator.

    Raises InvalidInput and SlugTaken.
    """
    _check_name(name)
    _check_slug(slug, None)
    now = clock.now()
    project = Project(id=str(ids.uuid7()), name=name, slug=slug, created_at=now, updated_at=now)
    _save(project, slug)
    append_role_binding(
        0, Binding(project.id, actor, 1, Role.OWNER, f"project-created:{project.id}", actor, now)
    )
    for scope in (audit.INSTANCE, project.id):
        audit.record(
            scope,
            actor=actor.pair,
            action="project.created",
            subject=("project", project.id),
            metadata={"slug": slug},
            origin=origin,
        )
    return project


@db.write_transaction
def update_project(
    grant: Grant, version: int, *, name: str | None = None, slug: str | None = None
) -> Project:
    """Renames a project; None leaves a field as it is. Raises InvalidInput, SlugTaken, VersionConflict."""
    project = _locked(grant)
    changes: dict[str, str] = {}
    if name is not None and name != project.name:
        _check_name(name)
        changes["name"] = name
    if slug is not None and slug != project.slug:
        _check_slug(slug, project.pk)
        changes["slug"] = slug
    try:
        with db.savepoint():
            new = cas.update(
                Project.objects.filter(pk=project.pk),
                version=version,
                by=1 if changes else 0,
                **(changes | {"updated_at": clock.now()} if changes else {}),
            )
    except IntegrityError as error:
        raise SlugTaken from error
    if changes:
        _audit(grant, "project.updated", {"version": new, **changes})
    return Project.objects.get(pk=project.pk)


@db.write_transaction
def set_project_status(grant: Grant, version: int, status: str) -> Project:
    """Archives or restores a project; whoever archives also cancels what is queued (triggers.services).

    A project that already has the status stays as it is. Raises VersionConflict.
    """
    if status not in Project.Status.values:
        raise InvalidInput.field("status", _("Not a status."))
    project = _locked(grant)
    changed = project.status != status
    new = cas.update(
        Project.objects.filter(pk=project.pk),
        version=version,
        by=1 if changed else 0,
        status=status,
        updated_at=clock.now() if changed else project.updated_at,
    )
    if changed:
        _audit(grant, f"project.{'archived' if status == 'archived' else 'restored'}", {"version": new})
    return Project.objects.get(pk=project.pk)


def _locked(grant: Grant) -> Project:
    project = db.lock(Project.objects.filter(pk=grant.project_id)).first()
    if project is None:
        raise NotFound
    confirm(grant, "project.manage")
    return project


def _audit(grant: Grant, action: str, metadata: dict[str, object]) -> None:
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action=action,
        subject=("project", grant.project_id),
        metadata=metadata,
        origin=grant.origin,
    )


def _save(project: Project, slug: str) -> None:
    try:
        with db.savepoint():
            project.save(force_insert=True)
    except IntegrityError as error:
        raise SlugTaken from error


def _check_name(name: str) -> None:
    if not ids.is_text_id(name, 255) or not name.strip():
        raise InvalidInput.field("name", _("1 to 255 characters without control characters."))


def _check_slug(slug: str, own_id: str | None) -> None:
    if not isinstance(slug, str) or SLUG.fullmatch(slug) is None:
        raise InvalidInput.field("slug", _("1 to 128 lower-case letters, digits and inner hyphens."))
    # An id in place of a slug would make paths ambiguous.
    if ids.parse_uuid(slug) is not None or (slug != own_id and Project.objects.filter(pk=slug).exists()):
        raise InvalidInput.field("slug", _("This would read as the id of a project."))
