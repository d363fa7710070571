"""The list of live sessions: the one door that makes a session, and every way to end one (§6.1, §6.3)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.models import Session
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.middleware.csrf import rotate_token

from apps.access.addresses import address_of
from apps.access.errors import SessionNotFresh, SignInRefused
from apps.access.models import MAX_SESSIONS, SignIn, User
from apps.access.oidc import rules
from apps.access.sessions import STORED_LENGTH, digest_of
from apps.audit import services as audit
from apps.core import clock, db
from apps.core.errors import Busy, InvalidInput, NotFound
from apps.identity.models import IdentitySubject
from apps.identity.principals import Assurance, PolicySubject
from apps.identity.queries import check_provider, resolve_authentication_subject

ORIGIN = "panel"
FRESH_MINUTES = 15
SEEN_EVERY = timedelta(minutes=5)
STRENGTH = (Assurance.SINGLE_FACTOR, Assurance.MULTI_FACTOR, Assurance.HARDWARE)


def sign_in(
    request: HttpRequest,
    subject: PolicySubject,
    method: str,
    assurance: Assurance,
    *,
    provider: str,
    provider_subject: str,
    authenticated_at: datetime | None = None,
    expires_at: datetime | None = None,
    provider_session: str = "",
) -> SignIn:
    """Starts the session of a person who has just proved to be `subject`; the only function that does.

    `method` is a short word for the list (`password`, `passkey`, `oidc`); `provider` and `provider_subject` name
    the binding that every later request resolves anew, so the session ends with the binding or the subject.
    `authenticated_at` is when the person proved it (default now, never later), `expires_at` ends the session
    before the usual two weeks, `provider_session` is a digest (at most 64 characters) of the provider's name for
    it. With 64 live sessions on this kind of device the one seen least lately ends. The key of the session and
    the CSRF token are new afterwards. Raises SignInRefused where the binding does not stand for an active
    `subject` with an account, InvalidInput, and DirectoryUnavailable.
    """
    check_provider(provider, provider_subject)
    if assurance not in STRENGTH:
        raise InvalidInput
    now = clock.now()
    proved = min(authenticated_at or now, now)
    latest = now + timedelta(seconds=settings.SESSION_COOKIE_AGE)
    ends = min(expires_at or latest, latest)
    if ends <= now:
        raise SignInRefused
    old = request.session.session_key
    if _row_of(old).exists():
        request.session.flush()
    # Whoever put a key into this browser before does not know the new one.
    request.session.cycle_key()
    request.session.set_expiry(None)
    key = request.session.session_key
    if key is None:
        raise SignInRefused
    row = SignIn(
        platform=_platform(request),
        digest=digest_of(key),
        provider=provider,
        provider_subject=provider_subject,
        provider_session=provider_session,
        method=method,
        assurance=assurance,
        authenticated_at=proved,
        created_at=now,
        last_seen_at=now,
        expires_at=ends,
        address=address_of(request),
        agent=request.headers.get("User-Agent", "")[:200].replace("\0", ""),
    )
    _start(row, subject, old)
    rotate_token(request)
    request.user = row.user
    request._sign_in = row  # type: ignore[attr-defined]
    return row


def session_of(request: HttpRequest) -> SignIn | None:
    """The session of a request, read once and not yet ended by its binding or subject; two queries.

    It may have expired: the principal says so. Raises DirectoryUnavailable.
    """
    if not hasattr(request, "_sign_in"):
        request._sign_in = _resolved(request.session.session_key)  # type: ignore[attr-defined]
    found: SignIn | None = request._sign_in  # type: ignore[attr-defined]
    return found


def _resolved(key: str | None) -> SignIn | None:
    row = _row_of(key).select_related("user").first()
    if row is None:
        return None
    subject = resolve_authentication_subject(row.provider, row.provider_subject)
    if subject is None or subject.id != row.user.subject_id:
        return None
    if not rules.may_come_in(row.user.username, row.provider):
        return None
    note_seen(row, clock.now())
    return row


@db.write_transaction
def _start(row: SignIn, subject: PolicySubject, old: str | None) -> None:
    # The lock keeps two sign-ins out of one slot, and whoever disables the person out of the middle.
    db.lock(IdentitySubject.objects.filter(pk=subject.id)).first()
    found = resolve_authentication_subject(row.provider, row.provider_subject)
    user = User.objects.filter(subject=subject.id).first()
    if found is None or found.id != subject.id or user is None:
        raise SignInRefused
    if not rules.may_come_in(user.username, row.provider):
        raise SignInRefused
    row.user = user
    _row_of(old).delete()
    _end(SignIn.objects.filter(user=user, expires_at__lte=row.created_at))
    row.slot = _free_slot(row)
    row.save(force_insert=True)
    details: dict[str, object] = {"method": row.method, "assurance": row.assurance, "address": row.address}
    if rules.is_required() and not row.provider.startswith("oidc:"):
        details["break_glass"] = True
    _record(user.subject_id, "session.started", subject.pair, details)


def _free_slot(row: SignIn) -> int:
    live = SignIn.objects.filter(user=row.user, platform=row.platform).order_by("last_seen_at", "id")
    taken = list(live.values_list("slot", flat=True))
    free = next((slot for slot in range(MAX_SESSIONS) if slot not in taken), None)
    if free is not None:
        return free
    _end(SignIn.objects.filter(user=row.user, platform=row.platform, slot=taken[0]))
    return taken[0]


def sign_out(request: HttpRequest) -> None:
    """Ends the session of the request; without one nothing happens."""
    found = session_of(request)
    request.session.flush()
    request.user = AnonymousUser()
    request._sign_in = None  # type: ignore[attr-defined]
    if found is not None:
        _end_one(found)


@db.write_transaction
def _end_one(row: SignIn) -> None:
    if _end(SignIn.objects.filter(pk=row.pk)):
        subject = ("user", row.user.subject_id)
        _record(row.user.subject_id, "session.ended", subject, {"method": row.method})


@db.write_transaction
def end_session(subject_id: str, sign_in_id: UUID, *, actor: PolicySubject, origin: str) -> None:
    """Ends one session of a person; raises NotFound."""
    if not _end(SignIn.objects.filter(pk=sign_in_id, user__subject=subject_id)):
        raise NotFound
    _record(subject_id, "session.revoked", actor.pair, {"count": 1}, origin)


@db.write_transaction
def end_sessions(
    subject_id: str,
    *,
    actor: PolicySubject,
    origin: str,
    keep: UUID | None = None,
    provider: str | None = None,
    provider_subject: str | None = None,
) -> int:
    """Ends the sessions of a person, but `keep`, or those of one binding; returns how many."""
    rows = SignIn.objects.filter(user__subject=subject_id)
    if keep is not None:
        rows = rows.exclude(pk=keep)
    if provider is not None:
        rows = rows.filter(provider=provider, provider_subject=provider_subject)
    count = _end(rows)
    if count:
        _record(subject_id, "session.revoked", actor.pair, {"count": count}, origin)
    return count


@db.write_transaction
def end_provider_sessions(
    provider: str, *, provider_subject: str | None = None, provider_session: str | None = None, origin: str
) -> int:
    """Ends what an identity provider signs out: one session of its own, or all of a person (one must be given)."""
    if not provider_subject and not provider_session:
        raise InvalidInput
    rows = SignIn.objects.filter(provider=provider)
    if provider_subject:
        rows = rows.filter(provider_subject=provider_subject)
    if provider_session:
        rows = rows.filter(provider_session=provider_session)
    people = sorted(set(rows.values_list("user__subject_id", flat=True)))
    count = _end(rows)
    for subject_id in people:
        _record(subject_id, "session.ended", ("user", subject_id), {"provider": provider}, origin)
    return count


@db.write_transaction
def forget_expired_sessions(limit: int) -> int:
    """Deletes rows whose time is over; nobody did that, so nothing is recorded. Returns how many."""
    over = SignIn.objects.filter(expires_at__lte=clock.now()).order_by("expires_at")
    return _end(SignIn.objects.filter(pk__in=list(over.values_list("pk", flat=True)[:limit])))


@db.write_transaction
def refresh_session(
    row: SignIn, assurance: Assurance, *, method: str, authenticated_at: datetime | None = None
) -> None:
    """Remembers that the person proved it once more; the assurance never falls. Raises SignInRefused if it ended."""
    now = clock.now()
    live = db.lock(SignIn.objects.filter(pk=row.pk, expires_at__gt=now)).first()
    if live is None:
        raise SignInRefused
    row.authenticated_at = max(live.authenticated_at, min(authenticated_at or now, now))
    row.assurance = max(live.assurance, assurance, key=_strength)
    row.save(update_fields=["authenticated_at", "assurance"])
    subject = ("user", row.user.subject_id)
    _record(subject[1], "session.confirmed", subject, {"method": method, "assurance": row.assurance})


def is_fresh(request: HttpRequest, minutes: int = FRESH_MINUTES) -> bool:
    """Whether the person of this session proved it within the last `minutes`."""
    row = session_of(request)
    if row is None:
        return False
    age = clock.now() - row.authenticated_at
    return timedelta(0) <= age < timedelta(minutes=minutes)


def require_fresh(request: HttpRequest, minutes: int = FRESH_MINUTES) -> None:
    """Raises SessionNotFresh; for roles, tokens, decisions and ways to sign in."""
    if not is_fresh(request, minutes):
        raise SessionNotFresh


def note_seen(row: SignIn, now: datetime) -> None:
    """Remembers that a session is in use; one write in five minutes, and a busy database is no reason to fail."""
    if now - row.last_seen_at < SEEN_EVERY:
        return
    try:
        SignIn.objects.filter(pk=row.pk, last_seen_at__lte=now - SEEN_EVERY).update(last_seen_at=now)
    except (DatabaseError, Busy):
        return


def _row_of(key: str | None) -> QuerySet[SignIn]:
    return SignIn.objects.filter(digest=digest_of(key)) if key else SignIn.objects.none()


def _end(rows: QuerySet[SignIn]) -> int:
    """Deletes rows and what the sessions kept; returns how many."""
    digests = list(rows.values_list("digest", flat=True))
    Session.objects.filter(session_key__in=[digest[:STORED_LENGTH] for digest in digests]).delete()
    SignIn.objects.filter(digest__in=digests).delete()
    return len(digests)


def _platform(request: HttpRequest) -> str:
    mobile = "Mobi" in request.headers.get("User-Agent", "")
    return SignIn.Platform.MOBILE if mobile else SignIn.Platform.DESKTOP


def _strength(assurance: str) -> int:
    return STRENGTH.index(Assurance(assurance))


def _record(
    subject_id: str,
    action: str,
    actor: tuple[str, str],
    metadata: Mapping[str, object],
    origin: str = ORIGIN,
) -> None:
    subject = ("user", subject_id)
    audit.record(
        audit.INSTANCE, actor=actor, action=action, subject=subject, metadata=metadata, origin=origin
    )
