"""People as a whole: enabling and disabling them, and who administers the installation."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from apps.access.errors import LastAdministrator, NotYourself
from apps.access.models import User
from apps.access.services.sessions import end_sessions
from apps.audit import services as audit
from apps.core import db
from apps.core.errors import InvalidInput, NotFound, VersionConflict
from apps.identity import services as identity
from apps.identity.models import IdentitySubject
from apps.identity.principals import PolicySubject
from apps.projects.services import shut_out


@db.write_transaction
def change_person(
    subject_id: str,
    version: int,
    *,
    status: str | None = None,
    administrator: bool | None = None,
    leave_ownerless: bool = False,
    actor: PolicySubject,
    origin: str,
) -> User:
    """Enables or disables a person, or makes them instance administrator or not any more.

    Disabling ends every session for good and stops every token until the person is enabled again; roles stay.
    Nobody does this to themselves, and one enabled administrator stays. `leave_ownerless` disables also the only
    owner of a project. `version` is the subject's, and is raised by each change. Raises NotFound, VersionConflict,
    NotYourself, LastAdministrator, LastOwner, InvalidInput.
    """
    # One lock for all: two administrators who disable each other at once must not both succeed.
    list(db.lock(User.objects.filter(is_superuser=True).order_by("pk")))
    subject = db.lock(IdentitySubject.objects.filter(pk=subject_id)).first()
    user = User.objects.filter(subject=subject_id).first()
    if subject is None or user is None:
        raise NotFound
    if subject.version != version:
        raise VersionConflict(subject.version)
    if status is not None and status not in IdentitySubject.Status.values:
        raise InvalidInput.field("status", _("Not a status."))
    wanted = (status or subject.status, user.is_superuser if administrator is None else administrator)
    if wanted == (subject.status, user.is_superuser):
        return user
    loses = user.is_superuser and subject.status == "active" and wanted != ("active", True)
    if (loses or wanted[0] == "disabled") and actor.id == subject_id:
        raise NotYourself
    if loses and not _others(user).exists():
        raise LastAdministrator
    if wanted[0] == "disabled" and subject.status != "disabled":
        shut_out(
            PolicySubject("user", subject_id), leave_ownerless=leave_ownerless, actor=actor, origin=origin
        )
    if wanted[0] == subject.status:
        identity.count_change(subject_id, version)
    else:
        identity.set_subject_status(subject_id, version, wanted[0], actor=actor, origin=origin)
    if wanted[0] == "disabled":
        end_sessions(subject_id, actor=actor, origin=origin)
    if wanted[1] != user.is_superuser:
        User.objects.filter(pk=user.pk).update(is_superuser=wanted[1])
        action = "administrator.granted" if wanted[1] else "administrator.revoked"
        audit.record(
            audit.INSTANCE, actor=actor.pair, action=action, subject=("user", subject_id), origin=origin
        )
    return User.objects.select_related("subject").get(pk=user.pk)


def _others(user: User) -> QuerySet[User]:
    return User.objects.filter(is_superuser=True, subject__status="active").exclude(pk=user.pk)
