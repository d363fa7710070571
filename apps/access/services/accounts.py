"""Accounts: a sign-in name and password for one identity subject; the first one also owns the instance."""

from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.hashers import make_password
from django.db import IntegrityError
from django.utils.translation import gettext_lazy as _

from apps.access.backends import PROVIDER
from apps.access.errors import UsernameTaken
from apps.access.models import User
from apps.access.names import is_name, normal
from apps.access.services.passwords import encode
from apps.audit import services as audit
from apps.core import clock, db, ids
from apps.core.errors import InvalidInput
from apps.identity import services as identity
from apps.identity.principals import Assurance, PolicySubject, Principal
from apps.projects.errors import BootstrapNotPristine
from apps.projects.queries import DEFAULT_PROJECT, is_claimable
from apps.projects.services import claim_owner_bootstrap

SETUP = "setup"
BAD_NAME = _("1 to 64 letters, digits and . @ + - _")


def setup_first_account(challenge_id: str, token: str, username: str, password: str) -> User:
    """Account, subject, sign-in binding, ownership of `default` and instance administration, all or nothing.

    Raises InvalidInput for name, password or token, UsernameTaken, and what `claim_owner_bootstrap` raises.
    """
    if not is_claimable():
        # Before the costly hash: strangers can still reach the page after set-up.
        raise BootstrapNotPristine
    username, encoded = checked(username, password)
    return _setup(challenge_id, token, username, encoded)


@db.write_transaction
def _setup(challenge_id: str, token: str, username: str, encoded: str) -> User:
    registered = identity.register_subject("user", origin=SETUP)
    subject = PolicySubject(registered.type, registered.id)
    now = clock.now()
    principal = Principal(
        subject, f"setup:{subject.id}", now, now + timedelta(minutes=1), Assurance.SINGLE_FACTOR
    )
    # Before the account: without a good token nobody learns which names are taken.
    claim_owner_bootstrap(DEFAULT_PROJECT, challenge_id, token, principal)
    return _create(username, encoded, subject, administrator=True, actor=subject, origin=SETUP)


def create_account(
    username: str, password: str, *, administrator: bool = False, actor: PolicySubject, origin: str
) -> User:
    """A further account with no role anywhere. Raises InvalidInput and UsernameTaken."""
    username, encoded = checked(username, password)
    return register(username, encoded, administrator=administrator, actor=actor, origin=origin)


@db.write_transaction
def provision_person(username: str, provider: str, provider_subject: str, *, origin: str) -> User:
    """A person who signs in by a provider only: subject, account without password, binding, and no role (§6.4.2).

    The caller has verified the identity and seen that it is unknown here. Raises InvalidInput for the name or
    the provider, UsernameTaken, and VersionConflict where the identity is or was bound.
    """
    name = normal(username)
    if not is_name(name):
        raise InvalidInput.field("username", BAD_NAME)
    return register(name, None, origin=origin, bind=(provider, provider_subject))


@db.write_transaction
def register(
    username: str,
    encoded: str | None,
    *,
    administrator: bool = False,
    actor: PolicySubject | None = None,
    origin: str,
    bind: tuple[str, str] | None = None,
) -> User:
    """Subject, account and binding (to the password, or to `bind`), and no role; `actor` None is the person.

    Name and password went through `checked`. Raises UsernameTaken, and VersionConflict for a `bind` that is or was
    bound.
    """
    registered = identity.register_subject("user", actor=actor, origin=origin)
    subject = PolicySubject(registered.type, registered.id)
    return _create(
        username,
        make_password(None) if encoded is None else encoded,
        subject,
        administrator=administrator,
        actor=actor or subject,
        origin=origin,
        bind=bind,
    )


def _create(
    username: str,
    encoded: str,
    subject: PolicySubject,
    *,
    administrator: bool,
    actor: PolicySubject,
    origin: str,
    bind: tuple[str, str] | None = None,
) -> User:
    """The account of a new subject, bound by its password or by `bind`."""
    user = User(
        id=ids.uuid7(),
        username=username,
        password=encoded,
        subject_id=subject.id,
        is_superuser=administrator,
        created_at=clock.now(),
    )
    try:
        with db.savepoint():
            user.save(force_insert=True)
    except IntegrityError as error:
        raise UsernameTaken from error
    provider, provider_subject = bind or (PROVIDER, str(user.id))
    identity.append_authentication_binding(
        provider, provider_subject, subject.id, expected_version=0, actor=actor, origin=origin
    )
    audit.record(
        audit.INSTANCE,
        actor=actor.pair,
        action="account.created",
        subject=subject.pair,
        metadata={"username": username, "administrator": administrator},
        origin=origin,
    )
    return user


def checked(username: str, password: str) -> tuple[str, str]:
    """The name in one form and the encoded password; hashing is slow and so happens outside transactions.

    Raises InvalidInput.
    """
    name = normal(username)
    if not is_name(name):
        raise InvalidInput.field("username", BAD_NAME)
    return name, encode(name, password)
