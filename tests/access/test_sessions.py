"""The list of live sessions: what makes one, what ends one, and how many there can be."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.db import IntegrityError, transaction
from django.test import Client

from apps.access.errors import BoundElsewhere, LastMethod, SignInRefused, UsernameTaken
from apps.access.models import SignIn, User
from apps.access.services import (
    bind_method,
    end_provider_sessions,
    end_session,
    end_sessions,
    provision_person,
    refresh_session,
    revoke_method,
)
from apps.access.sessions import digest_of
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.errors import NotFound
from apps.identity.principals import Assurance
from tests.conftest import Time
from tests.people import ROOT, Api, account, member, signed_in, subject

pytestmark = pytest.mark.django_db
OIDC = ("oidc:corp", "sub-1")
PHONE = {"headers": {"User-Agent": "Mozilla/5.0 (iPhone) Mobile/15E148 Mobi"}}


def status(client: Client) -> int:
    return int(Api(client=client)("GET", "me").status_code)


def ways(user: User) -> int:
    return bind_method(*OIDC, subject(user), actor=ROOT, origin="tests")


def test_a_session_is_known_by_digest_only() -> None:
    client = signed_in(member("viewer"))
    key = client.cookies["ql_session"].value
    row = SignIn.objects.get()
    assert row.digest == digest_of(key) and key not in str(vars(row))
    assert Session.objects.get().session_key == row.digest[:40]


def test_without_its_row_a_cookie_is_worth_nothing() -> None:
    client = signed_in(member("viewer"))
    assert status(client) == 200
    SignIn.objects.all().delete()
    assert status(client) == 401


def test_the_assurance_and_the_time_are_those_of_this_sign_in(time: Time) -> None:
    user = member("viewer")
    ways(user)
    one = signed_in(user)
    time.advance(60_000)
    two = signed_in(user, assurance=Assurance.MULTI_FACTOR, method="oidc", provider=OIDC)
    answers = [Api(client=client)("GET", "me").json() for client in (one, two)]
    assert [me["assurance"] for me in answers] == ["single_factor", "multi_factor"]
    assert [me["authenticated_at"] for me in answers] == [
        clock.rfc3339(clock.from_ms(time.ms - 60_000)),
        clock.rfc3339(clock.from_ms(time.ms)),
    ]


def test_the_65th_session_of_a_platform_ends_the_one_seen_least_lately(time: Time) -> None:
    user = member("viewer")
    clients = []
    for _number in range(64):
        clients.append(signed_in(user))
        time.advance(1000)
    phone = signed_in(user, **PHONE)
    SignIn.objects.filter(digest=digest_of(clients[0].cookies["ql_session"].value)).update(
        last_seen_at=clock.now()
    )
    newest = signed_in(user)
    assert [status(client) for client in (clients[0], clients[1], clients[2], phone, newest)] == [
        200, 401, 200, 200, 200,
    ]  # fmt: skip
    counts = {name: SignIn.objects.filter(platform=name).count() for name in ("desktop", "mobile")}
    assert counts == {"desktop": 64, "mobile": 1}


def test_the_database_holds_the_bound() -> None:
    signed_in(member("viewer"))
    row = SignIn.objects.get()
    for slot in (row.slot, -1, 64):
        row.pk, row.digest, row.slot = None, "0" * 64, slot
        row._state.adding = True
        with pytest.raises(IntegrityError), transaction.atomic():
            SignIn(**{field.attname: getattr(row, field.attname) for field in row._meta.fields[1:]}).save()


def test_signing_in_again_in_one_browser_ends_the_session_before() -> None:
    user = member("viewer")
    client = signed_in(user)
    before = client.cookies["ql_session"].value
    client.post("/panel/login/", {"username": "viewer", "password": "correct horse 7 battery"})
    after = client.cookies["ql_session"].value
    assert before != after and status(client) == 200
    client.cookies["ql_session"] = before
    assert status(client) == 401
    assert SignIn.objects.count() == Session.objects.count() == 1


def test_a_key_planted_before_the_sign_in_is_worth_nothing_afterwards() -> None:
    member("viewer")
    attacker = Client()
    attacker.post("/i18n", {"language": "en"})
    session = attacker.session
    session["planted"] = True
    session.save()
    planted = session.session_key
    victim = Client()
    victim.cookies["ql_session"] = planted
    assert (
        victim.post(
            "/panel/login/", {"username": "viewer", "password": "correct horse 7 battery"}
        ).status_code
        == 302
    )
    assert victim.cookies["ql_session"].value != planted and status(victim) == 200
    attacker.cookies["ql_session"] = planted
    assert status(attacker) == 401


def test_a_person_ends_one_or_all_others() -> None:
    user, other = member("viewer"), member("operator")
    clients = [signed_in(user) for _ in range(3)]
    stranger = signed_in(other)
    keep = SignIn.objects.get(digest=digest_of(clients[0].cookies["ql_session"].value))
    second = SignIn.objects.get(digest=digest_of(clients[1].cookies["ql_session"].value))
    with pytest.raises(NotFound):
        end_session(other.subject_id, second.pk, actor=subject(other), origin="tests")
    end_session(user.subject_id, second.pk, actor=subject(user), origin="tests")
    assert [status(client) for client in clients] == [200, 401, 200]
    assert end_sessions(user.subject_id, actor=subject(user), origin="tests", keep=keep.pk) == 1
    assert [status(client) for client in clients] == [200, 401, 401]
    assert status(stranger) == 200 and Session.objects.count() == 2
    assert AuditEntry.objects.filter(action="session.revoked").count() == 2


def test_revoking_a_way_to_sign_in_ends_its_sessions_and_no_others() -> None:
    user = member("viewer")
    assert ways(user) == ways(user) == 1
    by_password, by_oidc = signed_in(user), signed_in(user, provider=OIDC)
    with pytest.raises(BoundElsewhere):
        ways(account("else"))
    with pytest.raises(NotFound):
        revoke_method(*OIDC, subject(account("third")), actor=ROOT, origin="tests")
    assert revoke_method(*OIDC, subject(user), actor=ROOT, origin="tests") == 2
    assert (status(by_password), status(by_oidc)) == (200, 401)
    with pytest.raises(LastMethod):
        revoke_method("local", str(user.pk), subject(user), actor=ROOT, origin="tests")
    assert ways(user) == 3, "bound again is a new version"
    assert status(by_oidc) == 401, "an ended session does not come back"
    with pytest.raises(SignInRefused):
        signed_in(user, provider=("oidc:corp", "unknown"))


def test_a_provider_signs_out_by_session_or_by_person() -> None:
    user = member("viewer")
    ways(user)
    clients = [signed_in(user, provider=OIDC) for _ in range(2)]
    local = signed_in(user)
    row = SignIn.objects.get(digest=digest_of(clients[0].cookies["ql_session"].value))
    SignIn.objects.filter(pk=row.pk).update(provider_session="a" * 64)
    assert end_provider_sessions("oidc:corp", provider_session="a" * 64, origin="oidc") == 1
    assert [status(client) for client in clients] == [401, 200]
    assert end_provider_sessions("oidc:corp", provider_subject="sub-1", origin="oidc") == 1
    assert [status(client) for client in (*clients, local)] == [401, 401, 200]


def test_proving_it_again_makes_a_session_fresh_and_never_weaker(time: Time) -> None:
    user = member("viewer")
    signed_in(user, assurance=Assurance.MULTI_FACTOR)
    time.advance(3_600_000)
    row = SignIn.objects.select_related("user").get()
    refresh_session(row, Assurance.SINGLE_FACTOR, method="password")
    row = SignIn.objects.select_related("user").get()
    assert (row.assurance, row.authenticated_at) == ("multi_factor", clock.from_ms(time.ms))
    refresh_session(
        row, Assurance.HARDWARE, method="passkey", authenticated_at=clock.now() - timedelta(hours=2)
    )
    row = SignIn.objects.select_related("user").get()
    assert (row.assurance, row.authenticated_at) == ("hardware", clock.from_ms(time.ms))
    SignIn.objects.all().delete()
    with pytest.raises(SignInRefused):
        refresh_session(row, Assurance.SINGLE_FACTOR, method="password")


def test_a_provisioned_person_has_no_password_and_no_role() -> None:
    user = provision_person("王伟", *OIDC, origin="oidc")
    assert not user.has_usable_password()
    client = signed_in(user, provider=OIDC, method="oidc")
    me = Api(client=client)("GET", "me").json()
    assert (me["username"], me["roles"]) == ("王伟", [])
    with pytest.raises(UsernameTaken):
        provision_person("王伟", "oidc:corp", "sub-2", origin="oidc")
    with pytest.raises(SignInRefused):
        signed_in(user)


def test_last_seen_is_written_at_most_every_five_minutes(time: Time) -> None:
    client = signed_in(member("viewer"))
    began = time.ms
    time.advance(299_999)
    status(client)
    assert clock.to_ms(SignIn.objects.get().last_seen_at) == began
    time.advance(1)
    status(client)
    assert clock.to_ms(SignIn.objects.get().last_seen_at) == time.ms
