"""Names and passwords: who is it, at the price of one hash whatever is wrong; and changing a password."""

from __future__ import annotations

from uuid import UUID

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib import auth
from django.contrib.auth.hashers import make_password
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from apps.access import hashing, locks
from apps.access.addresses import network_of
from apps.access.errors import DoorBusy, SignInRefused, TooManyAttempts
from apps.access.models import User
from apps.access.names import normal
from apps.access.queries import find_account
from apps.access.services.sessions import end_sessions, session_of
from apps.audit import services as audit
from apps.core import canonical, db, ids
from apps.core.errors import InvalidInput
from apps.identity.principals import PolicySubject

MAX_PASSWORD = 1024

# Django says this, and has no Chinese for it: named here, our catalogue holds it.
_TOO_SHORT = ngettext_lazy(
    "This password is too short. It must contain at least %d character.",
    "This password is too short. It must contain at least %d characters.",
)


def check_password(request: HttpRequest, username: str, password: str) -> User:
    """The account of a name and its password. Raises SignInRefused and TooManyAttempts.

    After five failures the pair of name and address is locked for five minutes, whether the name exists or not:
    nobody locks another person out from afar, and nobody locks all who share an address.
    """
    seen = _pair(request, username)
    pair = name, client = seen.META["pair"], seen.META["REMOTE_ADDR"]
    if locks.seconds_left(pair):
        raise _locked()
    # The queue first: turning a flood away costs no query.
    with hashing.queue(client):
        if not AxesProxyHandler.is_allowed(seen, {"username": name}):
            locks.remember(pair)
            raise _locked()
        user = auth.authenticate(seen, username=username, password=password)
    if not isinstance(user, User):
        hashing.note_failure(client)
        if getattr(seen, "axes_locked_out", False):
            locks.remember(pair)
            _note_lock(username, client)
        raise SignInRefused
    AxesProxyHandler.reset_attempts(username=name, ip_address=client)
    return user


def turned_away(request: HttpRequest, username: str) -> TooManyAttempts | None:
    """What `check_password` would refuse with out of this process's memory; None if it would look at the password."""
    seen = _pair(request, username)
    client = seen.META["REMOTE_ADDR"]
    if locks.seconds_left((seen.META["pair"], client)):
        return _locked()
    return DoorBusy(retry_after=1) if hashing.is_full(client) else None


def name_of(request: HttpRequest, credentials: object) -> str:
    """The name axes counts under: a digest, for people type passwords where the name belongs."""
    return str(request.META.get("pair", ""))


def change_password(request: HttpRequest, user: User, current: str, new: str) -> None:
    """Gives a person a new password and ends all their sessions but this one.

    `current` is checked as at the door, unless the account has no password yet; then the caller has seen to it
    that the session is fresh. Raises SignInRefused, TooManyAttempts, InvalidInput.
    """
    if user.has_usable_password():
        check_password(request, user.username, current)
    encoded = encode(user.username, new)
    here = session_of(request)
    _change(user, encoded, None if here is None else here.pk)


@db.write_transaction
def _change(user: User, encoded: str, keep: UUID | None) -> None:
    subject = PolicySubject("user", user.subject_id)
    User.objects.filter(pk=user.pk).update(password=encoded)
    audit.record(
        audit.INSTANCE, actor=subject.pair, action="password.changed", subject=subject.pair, origin="panel"
    )
    end_sessions(user.subject_id, actor=subject, origin="panel", keep=keep)


def encode(username: str, password: str) -> str:
    """The stored form of a good password; slow, and so never called inside a transaction. Raises InvalidInput."""
    if len(password) > MAX_PASSWORD or not ids.is_utf8(password):
        raise InvalidInput.field("password", _("At most 1024 characters."))
    try:
        validate_password(password, User(username=username))
    except ValidationError as error:
        raise InvalidInput(fields={"password": list(error.messages)}) from error
    return make_password(password)


def _pair(request: HttpRequest, username: str) -> HttpRequest:
    """A request that holds the pair and nothing else: axes would store forms, paths and browsers too."""
    bare = HttpRequest()
    pair = canonical.sha256(f"sign-in\0{normal(username[:256]).casefold()}")
    bare.META = {"REMOTE_ADDR": network_of(request), "pair": pair}
    return bare


def _locked() -> TooManyAttempts:
    return TooManyAttempts(retry_after=int(settings.AXES_COOLOFF_TIME.total_seconds()))


@db.write_transaction
def _note_lock(username: str, address: str) -> None:
    """One entry per lock, about people who exist; names that do not are nobody's record."""
    user = find_account(username)
    if user is None:
        return
    subject = ("user", user.subject_id)
    audit.record(
        audit.INSTANCE,
        actor=("system", "access"),
        action="sign_in.locked",
        subject=subject,
        metadata={"address": address},
        origin="panel",
    )
