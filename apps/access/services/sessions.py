"""Sessions: signing in with a name and a password, and out again."""

from __future__ import annotations

import contextlib

from django.contrib import auth
from django.core.cache import cache
from django.http import HttpRequest

from apps.access.errors import SignInRefused, TooManyAttempts
from apps.access.models import User
from apps.audit import services as audit
from apps.core import canonical, clock, db

AUTHENTICATED_AT = "authenticated_at"
FAILURES = 5
WINDOW_SECONDS = 300


def sign_in(request: HttpRequest, username: str, password: str) -> User:
    """Starts a session. Raises SignInRefused, and TooManyAttempts after 5 failures per name and address.

    The lock holds for the pair of name and address, so that nobody locks another person out from afar.
    """
    key = _throttle_key(username, address(request))
    if cache.get(key, 0) >= FAILURES:
        raise TooManyAttempts(retry_after=WINDOW_SECONDS)
    user = auth.authenticate(request, username=username, password=password)
    if not isinstance(user, User):
        _count_failure(key)
        raise SignInRefused
    cache.delete(key)
    auth.login(request, user)
    request.session[AUTHENTICATED_AT] = clock.now_ms()
    _record(user, "session.started")
    return user


def sign_out(request: HttpRequest) -> None:
    """Ends the session of the request; without one nothing happens."""
    user = request.user
    auth.logout(request)
    if isinstance(user, User):
        _record(user, "session.ended")


def is_fresh(request: HttpRequest, minutes: int = 15) -> bool:
    """Whether the password was given in this session within the last `minutes`."""
    since = request.session.get(AUTHENTICATED_AT)
    return isinstance(since, int) and 0 <= clock.now_ms() - since < minutes * 60_000


def _count_failure(key: str) -> None:
    """One more failure; the window starts with the first."""
    if cache.add(key, 1, WINDOW_SECONDS):
        return
    # The window may end between the two calls; then this failure starts the next one.
    with contextlib.suppress(ValueError):
        cache.incr(key)


@db.write_transaction
def _record(user: User, action: str) -> None:
    subject = ("user", user.subject_id)
    audit.record(audit.INSTANCE, actor=subject, action=action, subject=subject, origin="panel")


def address(request: HttpRequest) -> str:
    """Where the request came from; what trusted proxies say of it is in there already (`qinglong.proxy`)."""
    return str(request.META.get("REMOTE_ADDR") or "")


def _throttle_key(username: str, address: str) -> str:
    return "sign-in:" + canonical.sha256(f"{username.lower()}\0{address}")
