"""Writing the directory: subjects, their status, and the sign-in methods bound to them."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import cas, clock, db, ids
from apps.core.errors import InvalidInput, NotFound, VersionConflict
from apps.core.fields import MAX_VERSION
from apps.identity.models import IdentityAuthenticationBinding, IdentitySubject, SubjectType
from apps.identity.principals import PolicySubject
from apps.identity.queries import Subject, check_provider

_PREFIX = {
    "user": "usr", "api_app": "app", "mcp_client": "mcp", "agent": "agt", "system": "sys", "worker": "wrk",
}  # fmt: skip


@db.write_transaction
def register_subject(kind: str, *, actor: PolicySubject | None = None, origin: str = "system") -> Subject:
    """A new subject with an opaque id; `actor` defaults to the subject itself (it registers on its own)."""
    if kind not in SubjectType.values:
        raise InvalidInput.field("type", _("Not a subject type."))
    now = clock.now()
    subject_id = f"{_PREFIX[kind]}_{ids.uuid7()}"
    IdentitySubject.objects.create(id=subject_id, type=kind, created_at=now, updated_at=now)
    by = actor or PolicySubject(kind, subject_id)
    audit.record(
        audit.INSTANCE, actor=by.pair, action="subject.registered", subject=(kind, subject_id), origin=origin
    )
    return Subject(kind, subject_id, "active", 1)


@db.write_transaction
def set_subject_status(
    subject_id: str, version: int, status: str, *, actor: PolicySubject, origin: str
) -> Subject:
    """Enables or disables a subject; roles and history stay. Raises NotFound and VersionConflict."""
    if status not in IdentitySubject.Status.values:
        raise InvalidInput.field("status", _("Not a status."))
    rows = IdentitySubject.objects.filter(pk=subject_id)
    row = db.lock(rows).first()
    if row is None:
        raise NotFound
    new = cas.update(rows, version=version, status=status, updated_at=clock.now())
    audit.record(
        audit.INSTANCE,
        actor=actor.pair,
        action=f"subject.{'enabled' if status == 'active' else 'disabled'}",
        subject=(row.type, row.id),
        metadata={"version": new},
        origin=origin,
    )
    return Subject(row.type, row.id, status, new)


@db.write_transaction
def count_change(subject_id: str, version: int) -> int:
    """A new version for a change beside the status that another service records; raises VersionConflict."""
    rows = IdentitySubject.objects.filter(pk=subject_id)
    return cas.update(rows, version=version, updated_at=clock.now())


@db.write_transaction
def append_authentication_binding(
    provider: str,
    provider_subject: str,
    subject_id: str,
    *,
    expected_version: int,
    state: str = "active",
    actor: PolicySubject,
    origin: str,
) -> int:
    """Binds an external identity to a subject, or revokes the binding; returns the new version.

    Raises NotFound for an unknown subject and VersionConflict when the current version is another.
    """
    check_provider(provider, provider_subject)
    if state not in IdentityAuthenticationBinding.State.values:
        raise InvalidInput.field("state", _("Not a state."))
    subject = db.lock(IdentitySubject.objects.filter(pk=subject_id)).first()
    if subject is None:
        raise NotFound
    rows = IdentityAuthenticationBinding.objects.filter(provider=provider, provider_subject=provider_subject)
    current = rows.order_by("-version").values_list("version", flat=True).first() or 0
    if current != expected_version or current >= MAX_VERSION:
        raise VersionConflict(current)
    IdentityAuthenticationBinding.objects.create(
        provider=provider,
        provider_subject=provider_subject,
        version=current + 1,
        state=state,
        subject=subject,
        created_at=clock.now(),
    )
    audit.record(
        audit.INSTANCE,
        actor=actor.pair,
        action=f"authentication.{'bound' if state == 'active' else 'revoked'}",
        subject=(subject.type, subject.id),
        metadata={"provider": provider, "version": current + 1},
        origin=origin,
    )
    return current + 1
