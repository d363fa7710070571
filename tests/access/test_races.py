"""Two at once, with real connections: bounds and last ones hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.sessions.backends.base import UpdateError
from django.db import connection
from django.test import Client

from apps.access.errors import InvitationInvalid, InvitationUnbacked, LastAdministrator, SignInRefused
from apps.access.models import ApiToken, Invitation, SignIn, User
from apps.access.scopes import Credential
from apps.access.services import (
    accept_with_password,
    change_person,
    create_token,
    invite,
    revoke_invitation,
    rotate_token,
)
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.identity.models import IdentitySubject
from apps.projects.errors import LastOwner
from apps.projects.queries import acting_owners
from apps.projects.services import change_role
from tests.people import PASSWORD, ROOT, Api, account, give, grant, project, signed_in, subject

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*acts: Callable[[], object]) -> list[str]:
    """The class names of what each act raised, or `done`."""
    ready = threading.Barrier(len(acts))
    outcomes: list[str] = []

    def run(act: Callable[[], object]) -> None:
        try:
            ready.wait()
            act()
            outcomes.append("done")
        except Exception as error:  # whatever it is, the list shows it
            outcomes.append(type(error).__name__)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(outcomes)


def test_the_64th_place_is_given_once(seeded: None) -> None:
    user = account("ann")
    for _ in range(63):
        signed_in(user)
    assert at_once(*[lambda: signed_in(user)] * 4) == ["done"] * 4
    slots = sorted(SignIn.objects.values_list("slot", flat=True))
    assert slots == list(range(64))


def test_two_administrators_who_disable_each_other_leave_one(seeded: None) -> None:
    one, two = account("one", administrator=True), account("two", administrator=True)

    def disable(target: User, by: User) -> Callable[[], object]:
        return lambda: change_person(
            target.subject_id, 1, status="disabled", actor=subject(by), origin="tests"
        )

    outcomes = at_once(disable(one, two), disable(two, one))
    assert outcomes == sorted(["done", LastAdministrator.__name__])
    assert User.objects.filter(is_superuser=True, subject__status="active").count() == 1


def test_disabling_beside_a_sign_in_leaves_no_session(seeded: None) -> None:
    user = account("ann")
    clients: list[Client] = []

    def come_in() -> None:
        clients.append(signed_in(user))

    outcomes = at_once(
        come_in, lambda: change_person(user.subject_id, 1, status="disabled", actor=ROOT, origin="tests")
    )
    # Its session may be gone before its browser is given it: the framework then answers that it was interrupted.
    assert outcomes in [
        sorted(["done", one]) for one in ("done", SignInRefused.__name__, UpdateError.__name__)
    ]
    assert not SignIn.objects.exists()
    assert [Api(client=client)("GET", "me").status_code for client in clients] in ([], [401])


def test_a_token_rotated_twice_at_once_has_one_secret_and_one_before(seeded: None) -> None:
    owner = subject(account("ann"))
    session = Credential("session")
    token = create_token(owner, name="ci", scopes=["*"], maker=session, origin="tests").token
    made: list[str] = []

    def rotate() -> None:
        made.append(
            rotate_token(owner, token.pk, overlap=timedelta(hours=1), maker=session, origin="tests").secret
        )

    assert at_once(rotate, rotate) == ["done", "done"]
    row = ApiToken.objects.get()
    assert row.previous_digest is not None and row.previous_digest != row.digest
    assert sorted(Api(secret)("GET", "me").status_code for secret in made) == [200, 200]
    assert row.previous_expires_at is not None and row.previous_expires_at > clock.now()


def test_a_link_opened_in_two_browsers_at_once_lets_one_in(seeded: None) -> None:
    root = account("root", administrator=True)
    for number in range(3):
        secret = invite(subject(root), administrator=True, origin="tests").secret
        names = [f"new-{number}-{browser}" for browser in range(3)]
        acts = [partial(accept_with_password, secret, name, PASSWORD) for name in names]
        assert at_once(*acts) == sorted(["done", *[InvitationInvalid.__name__] * 2])
        assert User.objects.filter(username__in=names).count() == 1
    assert (
        IdentitySubject.objects.filter(account=None, type="user").exclude(pk="usr_legacy_primary").count()
        == 0
    )
    assert Invitation.objects.exclude(accepted_by=None).count() == 3


def test_a_link_used_beside_its_revocation_does_one_of_the_two(seeded: None) -> None:
    root = account("root", administrator=True)
    for number in range(3):
        made = invite(subject(root), origin="tests")
        outcomes = at_once(
            partial(accept_with_password, made.secret, f"new-{number}", PASSWORD),
            partial(revoke_invitation, made.invitation.pk, actor=subject(root), origin="tests"),
        )
        row = Invitation.objects.get(pk=made.invitation.pk)
        came_in = User.objects.filter(username=f"new-{number}").exists()
        assert came_in == (row.accepted_at is not None) == (row.revoked_at is None)
        assert len([one for one in outcomes if one == "done"]) == 1, outcomes


def test_a_link_used_while_its_maker_is_shut_out_gives_nothing_afterwards(seeded: None) -> None:
    """Either the person was in before, or the promise fell; never in after."""
    root = account("root", administrator=True)
    for number in range(3):
        boss = account(f"boss-{number}", administrator=True)
        secret = invite(subject(boss), administrator=True, origin="tests").secret
        disable = partial(
            change_person, boss.subject_id, 1, status="disabled", actor=subject(root), origin="tests"
        )
        outcomes = at_once(partial(accept_with_password, secret, f"new-{number}", PASSWORD), disable)
        assert outcomes in (["done", "done"], sorted([InvitationUnbacked.__name__, "done"]))
        acts = list(
            AuditEntry.objects.filter(scope="", action__in=["invitation.accepted", "subject.disabled"])
            .order_by("-sequence").values_list("action", flat=True)[: len(outcomes)]
        )  # fmt: skip
        if outcomes == ["done", "done"]:
            assert acts == ["subject.disabled", "invitation.accepted"]


def test_of_two_owners_one_stays_who_could_act(seeded: None) -> None:
    """One is disabled while the other gives the role up: one of the two must fail."""
    root = account("root", administrator=True)
    for number in range(4):
        one, two = account(f"one-{number}"), account(f"two-{number}")
        owned = project(one, f"owned-{number}")
        give(two, "owner", owned)
        given = grant(two, "policy.manage", owned)
        outcomes = at_once(
            partial(change_person, one.subject_id, 1, status="disabled", actor=subject(root), origin="tests"),
            partial(change_role, given, subject(two), None, expected_version=1, mutation_id="m"),
        )
        assert outcomes == [LastOwner.__name__, "done"]
        assert acting_owners().filter(project=owned).count() == 1
