"""Passkeys at the door and inside: what an answer must be, and what dishonest ones get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django_otp_webauthn.models import WebAuthnCredential

from apps.access.factors import codes
from apps.access.models import RecoveryCode, SignIn, User
from apps.audit.models import AuditEntry
from apps.identity.queries import bindings_of
from apps.identity.services import set_subject_status
from tests.access.authenticator import BACKED_UP, ELIGIBLE, PRESENT, VERIFIED, Authenticator
from tests.conftest import Time
from tests.people import PASSWORD, ROOT, account, age_sign_ins, member, signed_in

pytestmark = pytest.mark.django_db
LOGIN = "/panel/login/"
ASK = "/panel/login/passkey/"
ADD = "/panel/security/passkeys/add/"


@pytest.fixture(autouse=True)
def _nobody_asked_yet() -> None:
    from apps.panel.views import door

    door._asked.clear()


def ask(client: Client, path: str = ASK, **form: str) -> Any:
    answer = client.post(path, form)
    assert answer.status_code == 200, answer.status_code
    return json.loads(answer.content)


def add(user: User, key: Authenticator, name: str = "Key", client: Client | None = None) -> Any:
    client = client or signed_in(user)
    return client.post(ADD, {"name": name, "answer": key.made(ask(client, "/panel/security/passkeys/ask/"))})


def alone(key: Authenticator, client: Client | None = None) -> int:
    client = client or Client()
    options = ask(client, alone="1")
    return int(client.post(LOGIN, {"alone": "1", "answer": key.used(options)}).status_code)


def test_a_passkey_is_a_way_to_sign_in_of_its_own() -> None:
    user, key = member("viewer", "ann"), Authenticator()
    answer = add(user, key)
    assert answer.status_code == 201 and RecoveryCode.objects.count() == 10
    assert [one.provider for one in bindings_of(user.subject_id)] == ["local", "passkey"]
    client = Client()
    assert alone(key, client) == 302
    row = SignIn.objects.get(method="passkey")
    assert (row.provider, row.assurance) == ("passkey", "hardware")
    assert client.get("/api/v3/me").json()["assurance"] == "hardware"
    passkey = WebAuthnCredential.objects.get()
    home = signed_in(user)
    assert home.post(f"/panel/security/passkeys/{passkey.pk}/remove/").status_code == 302
    assert client.get("/api/v3/me").status_code == 401 and home.get("/api/v3/me").status_code == 200
    assert not codes.has_second_factor(user) and not RecoveryCode.objects.exists()
    acts = list(AuditEntry.objects.filter(action__startswith="factor.").values_list("action", flat=True))
    assert sorted(acts) == ["factor.added", "factor.removed"]


def test_one_that_is_copied_between_devices_is_no_hardware() -> None:
    user = member("viewer", "ann")
    key = Authenticator(flags=PRESENT | VERIFIED | ELIGIBLE | BACKED_UP)
    add(user, key)
    assert alone(key) == 302 and SignIn.objects.get(method="passkey").assurance == "multi_factor"


def test_behind_the_password_having_it_is_enough_but_not_alone() -> None:
    user, key = member("viewer", "ann"), Authenticator()
    add(user, key)
    key.flags = PRESENT
    assert alone(key) == 401
    client = Client()
    client.post(LOGIN, {"username": "ann", "password": PASSWORD})
    answer = client.post("/panel/login/second/", {"answer": key.used(ask(client))})
    assert answer.status_code == 302
    assert SignIn.objects.get(method="password_passkey").assurance == "hardware"


def test_answers_of_elsewhere_of_others_and_of_before_are_refused() -> None:
    ann, bob = member("viewer", "ann"), member("viewer", "bob")
    key, other = Authenticator(), Authenticator()
    add(ann, key)
    add(bob, other)
    for bent in (
        Authenticator("https://evil.example", key.host, key=key.key, id=key.id, count=10),
        Authenticator(key.origin, "evil.example", key=key.key, id=key.id, count=10),
        Authenticator(id=key.id, count=10),
        Authenticator(key=key.key, count=10),
    ):
        assert alone(bent) == 401
    client = Client()
    options = ask(client, alone="1")
    answer = key.used(options)
    assert client.post(LOGIN, {"alone": "1", "answer": answer}).status_code == 302
    for again in (client, Client()):
        again.post("/panel/logout/")
        assert again.post(LOGIN, {"alone": "1", "answer": answer}).status_code == 401, (
            "a challenge counts once"
        )
    half = Client()
    half.post(LOGIN, {"username": "ann", "password": PASSWORD})
    assert half.post("/panel/login/second/", {"answer": other.used(ask(half))}).status_code == 401
    assert SignIn.objects.filter(user=ann, method__contains="passkey").count() == 0


def test_a_counter_that_goes_back_tells_a_copy() -> None:
    user, key = member("viewer", "ann"), Authenticator()
    add(user, key)
    for _ in range(3):
        assert alone(key) == 302
    copy = Authenticator(key=key.key, id=key.id, count=1)
    assert alone(copy) == 401 and alone(key) == 302


def test_an_answer_comes_within_five_minutes(time: Time) -> None:
    user, key = member("viewer", "ann"), Authenticator()
    add(user, key)
    client = Client()
    options = ask(client, alone="1")
    time.advance(300_000)
    assert client.post(LOGIN, {"alone": "1", "answer": key.used(options)}).status_code == 401


@pytest.mark.parametrize("answer", ["", "{", "[]", "{}", '{"id": 1}', "null", "9" * 70_000, '{"rawId": "x"}'])
def test_what_is_no_answer_is_refused(answer: str) -> None:
    user = member("viewer", "ann")
    add(user, Authenticator())
    client = Client()
    ask(client, alone="1")
    assert client.post(LOGIN, {"alone": "1", "answer": answer}).status_code == 401
    mine = signed_in(user)
    ask(mine, "/panel/security/passkeys/ask/")
    assert mine.post(ADD, {"name": "x", "answer": answer}).status_code == 302
    assert WebAuthnCredential.objects.count() == 1


def test_one_passkey_belongs_to_one_person() -> None:
    key = Authenticator()
    add(member("viewer", "ann"), key)
    add(member("viewer", "bob"), key)
    assert WebAuthnCredential.objects.get().user.username == "ann"
    assert [one.provider for one in bindings_of(User.objects.get(username="bob").subject_id)] == ["local"]


def test_a_disabled_person_has_no_passkey_either() -> None:
    user, key = member("viewer", "ann"), Authenticator()
    add(user, key)
    set_subject_status(user.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    assert alone(key) == 401


def test_a_passkey_confirms_and_makes_the_session_as_sure_as_it_is() -> None:
    user, key = member("owner", "ann"), Authenticator()
    add(user, key)
    client = signed_in(user)
    age_sign_ins()
    form = {"name": "ci", "preset": "read", "lifetime": "90"}
    assert client.post("/panel/tokens/", form).status_code == 403
    done = client.post("/panel/tokens/", {**form, "confirm": "1", "answer": key.used(ask(client))})
    assert done.status_code == 201
    assert client.get("/api/v3/me").json()["assurance"] == "hardware"


def test_strangers_ask_only_where_passkeys_are_and_not_without_end() -> None:
    assert Client().post(ASK, {"alone": "1"}).status_code == 404
    add(account("ann"), Authenticator())
    answers = [Client().post(ASK, {"alone": "1"}).status_code for _ in range(21)]
    assert answers == [200] * 20 + [429]
    assert Client(REMOTE_ADDR="203.0.113.9").post(ASK, {"alone": "1"}).status_code == 200
