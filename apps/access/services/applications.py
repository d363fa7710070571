"""Subjects that are no people: API applications, agents, MCP clients and workers (§3.4, api.md)."""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.translation import gettext_lazy as _

from apps.access.models import Application
from apps.audit import services as audit
from apps.core import cas, clock, db, ids
from apps.core.errors import InvalidInput, NotFound
from apps.identity import services as identity
from apps.identity.models import IdentitySubject, SubjectType
from apps.identity.principals import PolicySubject
from apps.projects.services import shut_out

TYPES = (SubjectType.API_APP, SubjectType.AGENT, SubjectType.MCP_CLIENT, SubjectType.WORKER)


@db.write_transaction
def create_application(
    kind: str, name: str, description: str = "", *, actor: PolicySubject, origin: str
) -> Application:
    """A new subject with a name and no role anywhere. Raises InvalidInput."""
    if kind not in TYPES:
        raise InvalidInput.field("type", _("Not a type of application."))
    _check(name, description)
    registered = identity.register_subject(kind, actor=actor, origin=origin)
    now = clock.now()
    made = Application.objects.create(
        subject_id=registered.id, name=name, description=description, created_at=now, updated_at=now
    )
    _record(made, "application.created", actor, {"name": name, "type": kind}, origin)
    return made


@db.write_transaction
def update_application(
    subject_id: str,
    version: int,
    *,
    name: str | None = None,
    description: str | None = None,
    status: str | None = None,
    leave_ownerless: bool = False,
    actor: PolicySubject,
    origin: str,
) -> Application:
    """Changes what is given; disabling stops its tokens at once.

    `leave_ownerless` disables also the only owner of a project. Raises NotFound, VersionConflict, InvalidInput,
    LastOwner.
    """
    rows = Application.objects.filter(pk=subject_id)
    row = db.lock(rows).first()
    if row is None:
        raise NotFound
    after = {"name": row.name if name is None else name,
             "description": row.description if description is None else description}  # fmt: skip
    _check(after["name"], after["description"])
    if status is not None and status not in IdentitySubject.Status.values:
        raise InvalidInput.field("status", _("Not a status."))
    subject = db.lock(IdentitySubject.objects.filter(pk=subject_id)).get()
    cas.update(
        rows, version=version, updated_at=clock.now(), name=after["name"], description=after["description"]
    )
    if status == "disabled" and subject.status != "disabled":
        shut_out(
            PolicySubject(subject.type, subject_id),
            leave_ownerless=leave_ownerless,
            actor=actor,
            origin=origin,
        )
    if status is not None and status != subject.status:
        identity.set_subject_status(subject_id, subject.version, status, actor=actor, origin=origin)
    _record(row, "application.updated", actor, after, origin)
    return Application.objects.select_related("subject").get(pk=subject_id)


def _check(name: str, description: str) -> None:
    if not ids.is_text_id(name, 128) or not name.strip():
        raise InvalidInput.field("name", _("1 to 128 characters without control characters."))
    if len(description) > 400 or (description and not ids.is_text_id(description, 400)):
        raise InvalidInput.field("description", _("At most 400 characters without control characters."))


def _record(
    row: Application, action: str, actor: PolicySubject, metadata: Mapping[str, object], origin: str
) -> None:
    audit.record(
        audit.INSTANCE,
        actor=actor.pair,
        action=action,
        subject=(row.subject.type, row.subject_id),
        metadata=metadata,
        origin=origin,
    )
