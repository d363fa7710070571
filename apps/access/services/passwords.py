"""Names and passwords: who is it, at the price of one hash whatever is wrong."""

from __future__ import annotations

import contextlib

from django.contrib import auth
from django.core.cache import cache
from django.http import HttpRequest

from apps.access.backends import PROVIDER
from apps.access.errors import SignInRefused, TooManyAttempts
from apps.access.models import SignIn, User
from apps.access.oidc import rules
from apps.access.services.sessions import address, sign_in
from apps.core import canonical
from apps.identity.principals import Assurance, PolicySubject

FAILURES = 5
WINDOW_SECONDS = 300
METHOD = "password"


def check_password(request: HttpRequest, username: str, password: str) -> User:
    """The account of a name and its password. Raises SignInRefused, and TooManyAttempts after 5 failures.

    The lock holds for the pair of name and address, so that nobody locks another person out from afar.
    """
    key = _throttle_key(username, address(request))
    if cache.get(key, 0) >= FAILURES:
        raise TooManyAttempts(retry_after=WINDOW_SECONDS)
    user = auth.authenticate(request, username=username, password=password)
    if not isinstance(user, User) or not rules.may_come_in(user.username, PROVIDER):
        _count_failure(key)
        raise SignInRefused
    cache.delete(key)
    return user


def sign_in_with_password(request: HttpRequest, username: str, password: str) -> SignIn:
    """Starts a session by name and password; raises what `check_password` and `sign_in` raise."""
    user = check_password(request, username, password)
    return sign_in(
        request,
        PolicySubject("user", user.subject_id),
        METHOD,
        Assurance.SINGLE_FACTOR,
        provider=PROVIDER,
        provider_subject=str(user.pk),
    )


def _count_failure(key: str) -> None:
    """One more failure; the window starts with the first."""
    if cache.add(key, 1, WINDOW_SECONDS):
        return
    # The window may end between the two calls; then this failure starts the next one.
    with contextlib.suppress(ValueError):
        cache.incr(key)


def _throttle_key(username: str, address: str) -> str:
    return "sign-in:" + canonical.sha256(f"{username.lower()}\0{address}")
