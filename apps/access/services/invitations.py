"""Somebody new comes in by a link: made by whoever may give what it promises, used once.

What is promised is an account, perhaps a role in one project, perhaps the administration of the instance. The right
to promise it is asked again when the link is used; making an account without a role is for instance administrators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from apps.access import queries
from apps.access.errors import (
    InvitationArchived,
    InvitationForNewPeople,
    InvitationInvalid,
    InvitationNeedsProvider,
    InvitationRefused,
    InvitationUnbacked,
    TooManyInvitations,
)
from apps.access.models import Invitation, User
from apps.access.names import is_name, normal
from apps.access.oidc import rules
from apps.access.services import accounts
from apps.audit import services as audit
from apps.core import canonical, clock, db, ids
from apps.core.errors import Forbidden, InvalidInput, NotFound
from apps.identity.models import IdentitySubject
from apps.identity.principals import PolicySubject
from apps.identity.queries import current_binding, find_subject
from apps.projects.models import Project, Role
from apps.projects.policy import Grant, confirm, decide
from apps.projects.queries import is_owner
from apps.projects.services.roles import Binding, append_role_binding, require_owner_for

ORIGIN = "invitation"
PREFIX = "ql3i_"
DOMAIN = "qinglong3-invitation-v1"
LASTS = timedelta(days=7)
LONGEST = timedelta(days=30)
SHORTEST = timedelta(minutes=5)
MAX_OPEN = 100
MAX_PER_HOUR = 100
KEPT = timedelta(days=30)
_REFUSAL_NOTED_EVERY = timedelta(hours=1)


@dataclass(frozen=True)
class Made:
    """A new invitation. The secret is `ql3i_` and 43 characters, and exists nowhere else."""

    invitation: Invitation
    secret: str = field(repr=False)


def digest_of(secret: str) -> str:
    """The only trace of a link that is stored."""
    return canonical.domain_digest(DOMAIN, secret)


@db.write_transaction
def invite(
    inviter: PolicySubject,
    *,
    username: str = "",
    administrator: bool = False,
    grant: Grant | None = None,
    role: str | None = None,
    lasts: timedelta = LASTS,
    origin: str,
) -> Made:
    """A one-time link for somebody new that lasts from 5 minutes to 30 days.

    `username` is a suggestion. `role` needs the inviter's `grant` of `policy.manage` in its project, `owner` an
    owner; no role, or `administrator`, an enabled instance administrator. At most 100 links of one inviter are open.
    Raises InvalidInput, Forbidden, OwnersOnly, TooManyInvitations, PolicyFenceConflict, ProjectArchived.
    """
    name = normal(username)
    if name and not is_name(name):
        raise InvalidInput.field("username", accounts.BAD_NAME)
    if not SHORTEST <= lasts <= LONGEST:
        raise InvalidInput.field("expires_in_ms", _("From 5 minutes to 30 days."))
    if (role is None) != (grant is None) or (role is not None and role not in Role.values):
        raise InvalidInput.field("role", _("Not a role."))
    _check_number(inviter)
    if grant is not None:
        confirm(grant, "policy.manage")
        require_owner_for(grant, role)
    if (administrator or grant is None) and not queries.is_administrator(inviter):
        raise Forbidden
    now = clock.now()
    secret = PREFIX + ids.token(32)
    made = Invitation.objects.create(
        digest=digest_of(secret),
        username=name,
        is_administrator=administrator,
        project_id=None if grant is None else grant.project_id,
        role=role,
        invited_by_type=inviter.type,
        invited_by_id=inviter.id,
        created_at=now,
        expires_at=now + lasts,
    )
    details = {
        "username": name, "administrator": administrator, "project": made.project_id, "role": role,
        "expires_at": clock.to_ms(made.expires_at),
    }  # fmt: skip
    _record(made, "invitation.made", inviter, details, origin)
    return Made(made, secret)


def _check_number(inviter: PolicySubject) -> None:
    mine = Invitation.objects.filter(invited_by_type=inviter.type, invited_by_id=inviter.id)
    # One of several calls at once must not see the others' places as free. Before any lock on a project, as always.
    db.lock(IdentitySubject.objects.filter(pk=inviter.id)).first()
    if queries.open_invitations(mine).count() >= MAX_OPEN:
        raise InvalidInput(_("100 of your links are open; revoke one first."))
    if mine.filter(created_at__gt=clock.now() - timedelta(hours=1)).count() >= MAX_PER_HOUR:
        raise TooManyInvitations(retry_after=600)


@db.write_transaction
def revoke_invitation(
    invitation_id: UUID, *, project_id: str | None = None, actor: PolicySubject, origin: str
) -> None:
    """Closes an open invitation, or one of `project_id` only; raises NotFound.

    The caller has checked that `actor` is an instance administrator, or has `policy.manage` in the project.
    """
    rows = queries.open_invitations().filter(pk=invitation_id)
    if project_id is not None:
        rows = rows.filter(project=project_id)
    row = db.lock(rows).first()
    if row is None or rows.update(revoked_at=clock.now()) != 1:
        raise NotFound
    _record(row, "invitation.revoked", actor, {"username": row.username}, origin)


def accept_with_password(secret: str, username: str, password: str) -> User:
    """The account of whoever holds the link, with what it promises, all or nothing.

    Raises InvitationInvalid and the other InvitationRefused, InvalidInput for name or password, UsernameTaken.
    """
    found = find_open(secret)
    if rules.is_required():
        _refuse(found.pk, InvitationNeedsProvider())
    # Before the transaction, and after the link was seen to be good: a hash costs much.
    name, encoded = accounts.checked(username, password)
    return _audited(found.pk, lambda: _accept(found.pk, name, encoded, None))


def accept_with_identity(
    invitation_id: UUID, provider: str, provider_subject: str, free_name: Callable[[str], str]
) -> User:
    """The same for an identity that a provider vouched for; `free_name` makes a name out of the suggested one.

    Only for identities that were never bound here: roles of people who are here are given to them, not to a link.
    The caller knows that the link was shown. Raises InvitationRefused, and UsernameTaken or VersionConflict where
    another request was faster.
    """
    row = Invitation.objects.filter(pk=invitation_id).first()
    if row is None:
        raise InvitationInvalid
    if current_binding(provider, provider_subject) is not None:
        _refuse(row.pk, InvitationForNewPeople())
    return _audited(
        row.pk, lambda: _accept(row.pk, free_name(row.username), None, (provider, provider_subject))
    )


def find_open(secret: str) -> Invitation:
    """The invitation of a link that can be used now, with its project; one query. Raises InvitationInvalid."""
    digest = digest_of(secret) if is_secret(secret) else ""
    row = queries.open_invitations().filter(digest=digest).select_related("project").first()
    if row is None:
        raise InvitationInvalid
    return row


def is_secret(text: str) -> bool:
    """Whether a text could be a link's secret."""
    return len(text) == len(PREFIX) + 43 and text.startswith(PREFIX) and text.isascii() and "\0" not in text


@db.write_transaction
def _accept(invitation_id: UUID, name: str, encoded: str | None, bind: tuple[str, str] | None) -> User:
    row = db.lock(queries.open_invitations().filter(pk=invitation_id)).first()
    if row is None:
        raise InvitationInvalid
    _require_backing(row)
    user = accounts.register(name, encoded, administrator=row.is_administrator, origin=ORIGIN, bind=bind)
    subject = PolicySubject("user", user.subject_id)
    now = clock.now()
    if row.project_id is not None:
        _give_role(row, subject)
    # The row was locked; the condition keeps the link single where a database does not lock.
    if queries.open_invitations().filter(pk=row.pk).update(accepted_at=now, accepted_by=user.subject_id) != 1:
        raise InvitationInvalid
    details = {
        "invited_by": row.invited_by_id, "administrator": row.is_administrator, "project": row.project_id,
        "role": row.role, "provider": bind[0] if bind else "local",
    }  # fmt: skip
    _record(row, "invitation.accepted", subject, details, ORIGIN)
    return user


def _give_role(row: Invitation, subject: PolicySubject) -> None:
    """In the inviter's name: their right gave it, and the new person decided nothing."""
    by = inviter_of(row)
    project_id, mutation_id = str(row.project_id), f"invitation:{row.pk}"
    append_role_binding(0, Binding(project_id, subject, 1, row.role, mutation_id, by, clock.now()))
    audit.record(
        project_id,
        actor=by.pair,
        action="role.granted",
        subject=subject.pair,
        metadata={"role": row.role, "previous_role": None, "version": 1, "mutation_id": mutation_id},
        origin=ORIGIN,
    )


def inviter_of(row: Invitation) -> PolicySubject:
    """Whose rights stand behind an invitation."""
    return PolicySubject(row.invited_by_type, row.invited_by_id)


def _require_backing(row: Invitation) -> None:
    """Holds still what the promise rests on, and sees that the inviter could give it now.

    Raises InvitationUnbacked and InvitationArchived.
    """
    by = inviter_of(row)
    instance = row.is_administrator or row.project_id is None
    if instance:
        # The same lock as in `change_person`.
        list(db.lock(User.objects.filter(is_superuser=True).order_by("pk")))
    db.lock(IdentitySubject.objects.filter(pk=by.id)).first()
    found = find_subject(by.id)
    if found is None or found.type != by.type or found.status != IdentitySubject.Status.ACTIVE:
        raise InvitationUnbacked("inviter_disabled")
    if instance and not queries.is_administrator(by):
        raise InvitationUnbacked("inviter_lost_right")
    if row.project_id is None:
        return
    db.lock(Project.objects.filter(pk=row.project_id)).first()
    decision = decide(by, row.project_id, "policy.manage")
    if decision.reason == "project_archived":
        raise InvitationArchived
    if decision.effect != "allow" or (row.role == Role.OWNER and not is_owner(row.project_id, by)):
        raise InvitationUnbacked("inviter_lost_right")


def _audited(invitation_id: UUID, accept: Callable[[], User]) -> User:
    """What `accept` makes; a refusal is remembered in a transaction of its own, since that one was taken back."""
    try:
        return accept()
    except InvitationInvalid:
        raise
    except InvitationRefused as refusal:
        _refuse(invitation_id, refusal)


def _refuse(invitation_id: UUID, refusal: InvitationRefused) -> NoReturn:
    _note_refusal(invitation_id, refusal.reason)
    raise refusal


@db.write_transaction
def _note_refusal(invitation_id: UUID, reason: str) -> None:
    """One entry an hour for each link: whoever holds one cannot fill the audit trail."""
    now = clock.now()
    row = db.lock(Invitation.objects.filter(pk=invitation_id)).first()
    if row is None or (row.refused_at is not None and now - row.refused_at < _REFUSAL_NOTED_EVERY):
        return
    Invitation.objects.filter(pk=invitation_id).update(refused_at=now)
    by = PolicySubject("system", "access")
    _record(row, "invitation.refused", by, {"reason": reason, "invited_by": row.invited_by_id}, ORIGIN)


@db.write_transaction
def forget_invitations(limit: int) -> int:
    """Deletes what could not be used any more for 30 days; the audit trail keeps that it was. Returns how many."""
    old = Invitation.objects.filter(expires_at__lte=clock.now() - KEPT).order_by("expires_at")
    count, _kinds = Invitation.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()
    return count


def _record(
    row: Invitation, action: str, actor: PolicySubject, details: Mapping[str, object], origin: str
) -> None:
    """For the instance, and for the project whose role is promised."""
    for scope in (audit.INSTANCE, *([row.project_id] if row.project_id else [])):
        audit.record(
            scope,
            actor=actor.pair,
            action=action,
            subject=("invitation", str(row.pk)),
            metadata=details,
            origin=origin,
        )
