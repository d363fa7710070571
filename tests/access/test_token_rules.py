"""Tokens: where from, how long, rotation, applications and their exchange."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from rest_framework.views import APIView

from apps.access.endpoints import SIGNED_IN, Endpoint
from apps.access.errors import ScopeExceeded
from apps.access.models import ApiToken, Application, User
from apps.access.scopes import Credential
from apps.access.services import (
    Created,
    create_application,
    create_token,
    exchange,
    revoke_token,
    rotate_token,
    update_application,
)
from apps.access.services.tokens import forget_access_tokens
from apps.core import clock
from apps.core.errors import InvalidInput, NotFound, Unauthenticated, VersionConflict
from apps.identity.principals import PolicySubject
from tests.conftest import Time
from tests.people import ROOT, Api, api, give, member, subject, token

pytestmark = pytest.mark.django_db
SESSION = Credential("session")


def made(owner: PolicySubject, *scopes: str, **options: Any) -> Created:
    return create_token(owner, name="ci", scopes=scopes or ("*",), maker=SESSION, origin="tests", **options)


def status(secret: str, address: str = "127.0.0.1") -> int:
    return int(Api(secret, client=Client(REMOTE_ADDR=address))("GET", "me").status_code)


def agent(role: str | None = "operator", kind: str = "agent") -> PolicySubject:
    row = create_application(kind, "release-bot", actor=ROOT, origin="tests")
    found = PolicySubject(kind, row.subject_id)
    if role:
        give(found, role)
    return found


def test_a_token_works_from_its_addresses_only() -> None:
    owner = subject(member("viewer"))
    created = made(owner, addresses=["10.1.2.3/8", "2001:db8::/32"])
    assert created.token.addresses == ["10.0.0.0/8", "2001:db8::/32"]
    assert [status(created.secret, address) for address in ("10.9.9.9", "::ffff:10.9.9.9", "2001:db8::5")] == [
        200, 200, 200,
    ]  # fmt: skip
    assert status(created.secret, "203.0.113.7") == 401
    assert Api(created.secret, client=Client(REMOTE_ADDR="203.0.113.7"))(
        "GET", "me", X_Forwarded_For="10.9.9.9"
    ).status_code == 401  # fmt: skip
    row = ApiToken.objects.get()
    assert (row.last_used_address, row.refused_address) == ("10.9.9.9", "203.0.113.7")


def test_a_token_makes_none_that_works_from_further_away() -> None:
    owner = subject(member("viewer"))
    maker = made(owner, "token.manage", "run.read", addresses=["10.0.0.0/8", "2001:db8::/32"])
    free = made(owner, "run.read")
    inside = made(owner, "run.read", addresses=["10.7.0.0/16"])
    call = Api(maker.secret, client=Client(REMOTE_ADDR="10.9.9.9"))

    def make(*addresses: str) -> int:
        body = {"name": "next", "scopes": ["run.read"], "addresses": list(addresses)}
        return int(call("POST", "tokens", body).status_code)

    for refused in ((), ("10.0.0.0/7",), ("10.1.0.0/16", "203.0.113.7"), ("::/0",), ("0.0.0.0/0",)):
        assert make(*refused) == 403, refused
    assert [make("10.1.0.0/16"), make("10.1.0.0/16", "2001:db8:1::/48")] == [201, 201]
    answer = call("POST", f"tokens/{free.token.pk}/rotate", {})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_exceeded")
    assert call("POST", f"tokens/{inside.token.pk}/rotate", {}).status_code in (200, 201)


@pytest.mark.parametrize("addresses", [["10.0.0.0/33"], ["host"], [""], ["1.2.3.4"] * 33])
def test_bad_addresses_are_refused(addresses: list[str]) -> None:
    with pytest.raises(InvalidInput):
        made(subject(member("viewer")), addresses=addresses)


def test_rotation_overlaps_and_then_the_old_secret_is_dead(time: Time) -> None:
    owner = subject(member("viewer"))
    first = made(owner)
    second = rotate_token(owner, first.token.pk, overlap=timedelta(hours=1), maker=SESSION, origin="tests")
    assert first.secret != second.secret and second.secret not in repr(second)
    assert status(first.secret) == status(second.secret) == 200
    time.advance(3_599_999)
    assert status(first.secret) == 200
    time.advance(1)
    assert status(first.secret) == 401 and status(second.secret) == 200
    third = rotate_token(owner, first.token.pk, maker=SESSION, origin="tests")
    fourth = rotate_token(owner, first.token.pk, maker=SESSION, origin="tests")
    assert [status(one.secret) for one in (second, third, fourth)] == [401, 200, 200]
    at_once = rotate_token(owner, first.token.pk, overlap=timedelta(0), maker=SESSION, origin="tests")
    assert [status(one.secret) for one in (third, fourth, at_once)] == [401, 401, 200]
    revoke_token(owner, first.token.pk, maker=SESSION, origin="tests")
    assert status(at_once.secret) == 401


def test_rotation_asks_what_making_asks(time: Time) -> None:
    owner, other = subject(member("viewer")), subject(member("operator"))
    first = made(owner, expires_at=clock.from_ms(time.ms + 60_000))
    with pytest.raises(NotFound):
        rotate_token(other, first.token.pk, maker=SESSION, origin="tests")
    narrow = Credential("token", frozenset({"run.read", "token.manage"}))
    with pytest.raises(ScopeExceeded):
        rotate_token(owner, first.token.pk, maker=narrow, origin="tests")
    for overlap in (timedelta(milliseconds=-1), timedelta(days=7, milliseconds=1)):
        with pytest.raises(InvalidInput):
            rotate_token(owner, first.token.pk, overlap=overlap, maker=SESSION, origin="tests")
    time.advance(60_000)
    with pytest.raises(NotFound):
        rotate_token(owner, first.token.pk, maker=SESSION, origin="tests")


def test_use_is_noted_at_most_once_a_minute(time: Time) -> None:
    created = made(subject(member("viewer")))
    status(created.secret, "10.0.0.1")
    time.advance(59_999)
    status(created.secret, "10.0.0.2")
    assert ApiToken.objects.get().last_used_address == "10.0.0.1"
    time.advance(1)
    status(created.secret, "10.0.0.2")
    assert ApiToken.objects.get().last_used_address == "10.0.0.2"


def test_an_agent_has_a_token_and_what_it_writes_needs_approval() -> None:
    bot = agent()
    caller = api(bot)
    me = caller("GET", "me").json()
    assert me["subject"] == {"type": "agent", "id": bot.id} and me["username"] is None
    assert me["assurance"] == "service"
    assert caller("GET", "projects/default").status_code == 200
    answer = caller("POST", "projects/default/tasks", {"name": "x", "command": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "approval_required")


def test_disabling_an_application_stops_its_tokens_at_the_next_call() -> None:
    bot = agent()
    caller = api(bot)
    assert caller("GET", "me").status_code == 200
    row = update_application(bot.id, 1, status="disabled", actor=ROOT, origin="tests")
    assert (row.version, row.subject.status) == (2, "disabled")
    assert caller("GET", "me").status_code == 401
    with pytest.raises(VersionConflict):
        update_application(bot.id, 1, status="active", actor=ROOT, origin="tests")
    update_application(bot.id, 2, status="active", name="bot", actor=ROOT, origin="tests")
    assert caller("GET", "me").status_code == 200 and Application.objects.get().name == "bot"


@pytest.mark.parametrize("kind", ["user", "system", "", "robot"])
def test_people_and_the_system_are_no_applications(kind: str) -> None:
    with pytest.raises(InvalidInput):
        create_application(kind, "x", actor=ROOT, origin="tests")


def test_a_client_secret_opens_nothing_and_is_exchanged_for_an_hour(time: Time) -> None:
    app = agent(kind="api_app")
    client = made(app, "run.read", "project.read", kind="client", addresses=["10.0.0.0/8"])
    assert client.secret.startswith("ql3c_") and status(client.secret, "10.0.0.1") == 401
    access = exchange(app.id, client.secret, None, address="10.0.0.1")
    assert status(access.secret, "10.0.0.1") == 200 and status(access.secret) == 401
    narrow = exchange(app.id, client.secret, ["run.read"], address="10.0.0.1")
    assert Api(narrow.secret, client=Client(REMOTE_ADDR="10.0.0.1"))("GET", "me").json()["scopes"] == [
        "run.read"
    ]
    with pytest.raises(ScopeExceeded):
        exchange(app.id, client.secret, ["run.start"], address="10.0.0.1")
    for who, secret, address in (
        ("usr_else", client.secret, "10.0.0.1"),
        (app.id, client.secret, "203.0.113.7"),
        (app.id, "ql3c_" + "x" * 43, "10.0.0.1"),
        (app.id, access.secret, "10.0.0.1"),
    ):
        with pytest.raises(Unauthenticated):
            exchange(who, secret, None, address=address)
    time.advance(3_600_000)
    assert status(access.secret, "10.0.0.1") == 401
    assert forget_access_tokens(clock.now()) == 2


def test_revoking_a_client_ends_what_it_was_exchanged_for() -> None:
    app = agent(kind="api_app")
    client = made(app, kind="client")
    access = exchange(app.id, client.secret, None, address="127.0.0.1")
    assert status(access.secret) == 200
    revoke_token(app, client.token.pk, maker=SESSION, origin="tests")
    assert status(access.secret) == 401
    with pytest.raises(Unauthenticated):
        exchange(app.id, client.secret, None, address="127.0.0.1")


def test_of_more_than_fifty_exchanged_tokens_the_oldest_ends(time: Time) -> None:
    app = agent(kind="api_app")
    client = made(app, kind="client")
    secrets = []
    for _number in range(51):
        secrets.append(exchange(app.id, client.secret, None, address="127.0.0.1").secret)
        time.advance(1)
    assert [status(secret) for secret in (secrets[0], secrets[1], secrets[50])] == [401, 200, 200]


def test_no_view_can_leave_the_checks_out(rf: Any) -> None:
    for name in ("permission_classes", "check_permissions", "initial", "authentication_classes", "dispatch"):
        with pytest.raises(TypeError):
            type("Careless", (Endpoint,), {name: ()})
        with pytest.raises(TypeError):
            type("Mixed", (type("Mixin", (), {name: ()}), Endpoint), {})

    class Elsewhere(APIView):
        permission_classes = ()
        permissions = {"GET": SIGNED_IN}

        def get(self, request: Any) -> Any:
            raise AssertionError("reached")

    secret = token(member("owner", administrator=True))
    answer = Elsewhere.as_view()(rf.get("/", headers={"Authorization": f"Bearer {secret}"}))
    assert answer.status_code == 401
    assert User.objects.count() == 1
