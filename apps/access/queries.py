"""Reading accounts and tokens."""

from __future__ import annotations

from collections.abc import Collection

from django.db import DatabaseError
from django.db.models import Q, QuerySet

from apps.access.errors import SessionListUnavailable
from apps.access.models import ApiToken, Application, Invitation, SignIn, User
from apps.access.names import MAX_LENGTH, normal
from apps.access.sessions import digest_of
from apps.core import clock, ids, pages
from apps.identity.principals import PolicySubject
from apps.identity.queries import Bound, bindings_of

MAX_KEY = 4096


def find_account(username: str) -> User | None:
    """The account of this sign-in name, whatever its case."""
    if not ids.is_text_id(username, MAX_LENGTH) or not ids.is_text_id(name := normal(username), MAX_LENGTH):
        return None
    return User.objects.filter(username__iexact=name).first()


def page_tokens(
    owner: PolicySubject,
    *,
    project_id: str | None = None,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> pages.Page[ApiToken]:
    """The tokens of one subject that were not revoked, newest first, each with its project.

    `project_id` limits them to those of one project.
    """
    rows = ApiToken.objects.filter(
        subject_id=owner.id, revoked_at=None, kind__in=(ApiToken.Kind.TOKEN, ApiToken.Kind.CLIENT)
    ).select_related("project")
    if project_id is not None:
        rows = rows.filter(project=project_id)
    return pages.paginate(
        rows,
        [pages.moment("created_at", descending=True), pages.identifier(descending=True)],
        kind="tokens",
        scope={"subject": owner.id, "project": project_id},
        limit=limit,
        cursor=cursor,
    )


def is_active(key: str, platform: str) -> bool:
    """Whether a session key is on the list of live sessions of that kind of device (§6.1).

    Raises SessionListUnavailable for a key that can be none, ValueError for a platform that there is not.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY:
        raise SessionListUnavailable
    if platform not in SignIn.Platform.values:
        raise ValueError("not a platform")
    try:
        return SignIn.objects.filter(
            digest=digest_of(key), platform=platform, expires_at__gt=clock.now()
        ).exists()
    except DatabaseError as error:
        raise SessionListUnavailable from error


def page_sessions(
    subject_id: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[SignIn]:
    """The live sessions of a person, newest first."""
    return pages.paginate(
        _live(subject_id),
        [pages.moment("created_at", descending=True), pages.identifier(descending=True)],
        kind="sessions",
        scope={"subject": subject_id},
        limit=limit,
        cursor=cursor,
    )


def sessions_of(subject_id: str) -> list[SignIn]:
    """All live sessions of a person (at most 128), the one seen last first."""
    return list(_live(subject_id).order_by("-last_seen_at", "-id"))


def count_sessions(subject_id: str) -> int:
    """How many sessions of a person live."""
    return _live(subject_id).count()


def count_tokens(subject_id: str) -> int:
    """How many tokens and client secrets of a subject work, or would if it were enabled."""
    now = clock.now()
    alive = Q(expires_at=None) | Q(expires_at__gt=now)
    rows = ApiToken.objects.filter(alive, subject_id=subject_id, revoked_at=None)
    return rows.exclude(kind=ApiToken.Kind.ACCESS).count()


def ways_of(subject_id: str) -> list[Bound]:
    """Every way a person can sign in now."""
    return bindings_of(subject_id)


def find_person(subject_id: str) -> User | None:
    """The account of a subject, with it."""
    if not ids.is_text_id(subject_id, 255):
        return None
    return User.objects.select_related("subject").filter(subject=subject_id).first()


def page_people(
    *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None, status: str | None = None
) -> pages.Page[User]:
    """All people by age of the account, each with its subject."""
    rows = User.objects.select_related("subject")
    if status is not None:
        rows = rows.filter(subject__status=status)
    keys = [pages.moment("created_at"), pages.identifier()]
    return pages.paginate(rows, keys, kind="people", scope={"status": status}, limit=limit, cursor=cursor)


def find_application(subject_id: str) -> Application | None:
    """An application with its subject."""
    if not ids.is_text_id(subject_id, 255):
        return None
    return Application.objects.select_related("subject").filter(pk=subject_id).first()


def application_named(name: str) -> Application | None:
    """The application of exactly this name, where there is just one."""
    if not ids.is_text_id(name, 128):
        return None
    found = list(Application.objects.select_related("subject").filter(name=name)[:2])
    return found[0] if len(found) == 1 else None


def page_applications(
    *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[Application]:
    """All applications, newest first, each with its subject."""
    return pages.paginate(
        Application.objects.select_related("subject"),
        [pages.moment("created_at", descending=True), pages.Key("subject_id", descending=True)],
        kind="applications",
        scope={},
        limit=limit,
        cursor=cursor,
    )


def is_administrator(subject: PolicySubject) -> bool:
    """Whether a subject is an enabled instance administrator."""
    return User.objects.filter(
        subject=subject.id, subject__type=subject.type, subject__status="active", is_superuser=True
    ).exists()


def open_invitations(rows: QuerySet[Invitation] | None = None) -> QuerySet[Invitation]:
    """The invitations that can be used now, of `rows` or of all."""
    return (Invitation.objects.all() if rows is None else rows).filter(
        accepted_at=None, revoked_at=None, expires_at__gt=clock.now()
    )


def invited_names(invitation_ids: Collection[str]) -> dict[str, str]:
    """The names that links were made for (empty: any), by id as text; one query where there are any."""
    found = [pk for pk in map(ids.parse_uuid, invitation_ids) if pk is not None]
    if not found:
        return {}
    rows = Invitation.objects.filter(pk__in=found).values_list("pk", "username")
    return {str(pk): username for pk, username in rows}


def page_invitations(
    *, project_id: str | None = None, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[Invitation]:
    """The open invitations, newest first, each with its project; all of them, or those of one project."""
    rows = open_invitations().select_related("project")
    if project_id is not None:
        rows = rows.filter(project=project_id)
    return pages.paginate(
        rows,
        [pages.moment("created_at", descending=True), pages.identifier(descending=True)],
        kind="invitations",
        scope={"project": project_id},
        limit=limit,
        cursor=cursor,
    )


def _live(subject_id: str) -> QuerySet[SignIn]:
    return SignIn.objects.filter(user__subject=subject_id, expires_at__gt=clock.now())
