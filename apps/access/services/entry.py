"""From a name at the door to a session, in one step or two; and proving it once more inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.http import HttpRequest

from apps.access.backends import PROVIDER
from apps.access.errors import SignInRefused
from apps.access.factors import codes, passkeys
from apps.access.models import SignIn, User
from apps.access.services.passwords import check_password
from apps.access.services.sessions import refresh_session, session_of, sign_in, sign_out
from apps.core import clock
from apps.core.errors import Unauthenticated
from apps.identity.principals import Assurance, PolicySubject

HALF_WAY_MS = 600_000
_HALF = "half_way"


def enter(request: HttpRequest, username: str, password: str) -> SignIn | None:
    """Starts a session, or remembers for ten minutes that the password was right and the second factor is due.

    Raises SignInRefused and TooManyAttempts.
    """
    user = check_password(request, username, password)
    if not codes.has_second_factor(user):
        return _start(request, user, "password", Assurance.SINGLE_FACTOR)
    sign_out(request)
    request.session.cycle_key()
    request.session.set_expiry(HALF_WAY_MS // 1000)
    request.session[_HALF] = {"user": str(user.pk), "at": clock.now_ms()}
    return None


def half_way(request: HttpRequest) -> User | None:
    """The person whose password was right in this browser and whose second factor is due."""
    kept: Any = request.session.get(_HALF)
    if not isinstance(kept, Mapping) or not 0 <= clock.now_ms() - kept["at"] < HALF_WAY_MS:
        return None
    return User.objects.filter(pk=UUID(kept["user"])).first()


def finish_with_code(request: HttpRequest, text: str) -> SignIn:
    """The second step by a code of the app or a recovery code; raises SignInRefused and TooManyAttempts."""
    user = half_way(request)
    if user is None:
        raise SignInRefused
    which = codes.use_code(user, text)
    return _start(request, user, f"password_{which}", Assurance.MULTI_FACTOR)


def ask_passkey(request: HttpRequest, *, alone: bool = False) -> dict[str, Any]:
    """What the browser needs for a passkey: of whoever is signed in or half-way in, else (or `alone`) of anybody."""
    row = session_of(request)
    user = None if alone else row.user if row is not None else half_way(request)
    return passkeys.begin_using(request, user)


def finish_with_passkey(request: HttpRequest, answer: str, *, alone: bool = False) -> SignIn:
    """The second step, or `alone` the only one, by a passkey; raises PasskeyRefused and SignInRefused."""
    before = None if alone else half_way(request)
    if before is None and not alone:
        raise SignInRefused
    user, name, sure = passkeys.use(request, before, answer)
    if before is not None:
        return _start(request, user, "password_passkey", sure)
    subject = PolicySubject("user", user.subject_id)
    return sign_in(request, subject, "passkey", sure, provider=passkeys.PROVIDER, provider_subject=name)


def confirm_with_password(request: HttpRequest, password: str) -> None:
    """Makes the session fresh again; raises SignInRefused and TooManyAttempts."""
    row = _present(request)
    found = check_password(request, row.user.username, password)
    if found.pk != row.user_id:
        raise SignInRefused
    refresh_session(row, Assurance.SINGLE_FACTOR, method="password")


def confirm_with_code(request: HttpRequest, text: str) -> None:
    """Makes the session of somebody without a password fresh; raises SignInRefused and TooManyAttempts."""
    row = _present(request)
    if row.user.has_usable_password():
        raise SignInRefused
    refresh_session(row, Assurance.SINGLE_FACTOR, method=codes.use_code(row.user, text))


def confirm_with_passkey(request: HttpRequest, answer: str) -> None:
    """Makes the session fresh, and as sure as the passkey is; raises PasskeyRefused and SignInRefused."""
    row = _present(request)
    _user, _name, sure = passkeys.use(request, row.user, answer)
    refresh_session(row, sure, method="passkey")


def _present(request: HttpRequest) -> SignIn:
    row = session_of(request)
    if row is None or row.expires_at <= clock.now():
        raise Unauthenticated
    return row


def _start(request: HttpRequest, user: User, method: str, sure: Assurance) -> SignIn:
    request.session.pop(_HALF, None)
    return sign_in(
        request,
        PolicySubject("user", user.subject_id),
        method,
        sure,
        provider=PROVIDER,
        provider_subject=str(user.pk),
    )
