"""Signing in with a name and a password, sessions, and the CSRF token."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import hashers
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.models import Session as SessionRow
from django.http import HttpRequest
from django.test import RequestFactory

from apps.access.errors import SignInRefused, TooManyAttempts, UsernameTaken
from apps.access.models import User
from apps.access.services import create_account, is_fresh, sign_out
from apps.access.services.entry import enter as sign_in
from apps.access.sessions import SessionStore
from apps.audit.models import AuditEntry
from apps.core.errors import InvalidInput
from apps.identity.services import append_authentication_binding, set_subject_status
from tests.conftest import Time
from tests.people import PASSWORD, ROOT, Api, account, member, signed_in

pytestmark = pytest.mark.django_db


def request(address: str = "203.0.113.7") -> HttpRequest:
    made = RequestFactory().post("/panel/login/", REMOTE_ADDR=address)
    made.session = SessionStore()
    made.user = AnonymousUser()
    return made


def test_a_session_knows_since_when(time: Time) -> None:
    user, made = account("ann"), request()
    started = sign_in(made, "ANN", PASSWORD)
    assert started is not None and started.user == user
    assert is_fresh(made)
    time.advance(15 * 60_000)
    assert not is_fresh(made)
    assert is_fresh(made, minutes=16)
    sign_out(made)
    assert not is_fresh(made, minutes=60)
    assert list(
        AuditEntry.objects.filter(origin="panel").order_by("sequence").values_list("action", flat=True)
    ) == [
        "session.started",
        "session.ended",
    ]


@pytest.mark.parametrize("name", ["nobody", "ann", "", "a\0b", "x" * 500])
def test_refusals_look_alike_and_cost_one_hash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    account("ann")
    hashed: list[str] = []
    hasher = hashers.get_hasher()
    encode = hasher.encode

    def count(password: str, *args: Any, **options: Any) -> str:
        hashed.append(password)
        return encode(password, *args, **options)

    monkeypatch.setattr(type(hasher), "encode", lambda self, *args, **options: count(*args, **options))
    with pytest.raises(SignInRefused) as refused:
        sign_in(request(), name, "wrong password")
    assert str(refused.value) == "sign_in_refused: Name or password is wrong."
    assert len(hashed) == (1 if name else 0)


def test_disabled_subjects_and_revoked_bindings_do_not_sign_in() -> None:
    user = account("ann")
    set_subject_status(user.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    with pytest.raises(SignInRefused):
        sign_in(request(), "ann", PASSWORD)
    set_subject_status(user.subject_id, 2, "active", actor=ROOT, origin="tests")
    sign_in(request(), "ann", PASSWORD)
    append_authentication_binding(
        "local",
        str(user.id),
        user.subject_id,
        expected_version=1,
        state="revoked",
        actor=ROOT,
        origin="tests",
    )
    with pytest.raises(SignInRefused):
        sign_in(request(), "ann", PASSWORD)


def test_failures_lock_name_and_address_together() -> None:
    account("ann")
    for _ in range(5):
        with pytest.raises(SignInRefused):
            sign_in(request(), "ann", "wrong")
    with pytest.raises(TooManyAttempts) as locked:
        sign_in(request(), "Ann", PASSWORD)
    assert locked.value.extra["retry_after"] > 0
    sign_in(request("203.0.113.8"), "ann", PASSWORD)


def test_revoking_the_binding_ends_sessions() -> None:
    user = member("viewer")
    browser = Api(client=signed_in(user))
    assert browser("GET", "me").status_code == 200
    append_authentication_binding(
        "local",
        str(user.id),
        user.subject_id,
        expected_version=1,
        state="revoked",
        actor=ROOT,
        origin="tests",
    )
    assert browser("GET", "me").status_code == 401


def test_sessions_end_after_two_weeks(time: Time) -> None:
    browser = Api(client=signed_in(member("viewer")))
    time.advance(14 * 24 * 3_600_000 - 1)
    assert browser("GET", "me").status_code == 200
    time.advance(1)
    answer = browser("GET", "me")
    assert (answer.status_code, answer.json()["code"]) == (401, "authenticated_principal_expired")


def test_unsafe_methods_need_the_csrf_token() -> None:
    client = signed_in(member("owner"), csrf=True)
    browser = Api(client=client)
    body = {"name": "ci", "scopes": ["run.read"]}
    answer = browser("POST", "tokens", body)
    assert (answer.status_code, answer.json()["code"]) == (403, "csrf_failed")
    client.get("/api/v3/docs")
    answer = browser("POST", "tokens", body, X_CSRFToken=client.cookies["ql_csrf"].value)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("name", "password", "part"),
    [
        ("", PASSWORD, "username"),
        ("a b", PASSWORD, "username"),
        ("a\n", PASSWORD, "username"),
        ("x" * 65, PASSWORD, "username"),
        ("ann", "short", "password"),
        ("ann", "password123", "password"),
        ("ann", "9182736450192837", "password"),
        ("ann", "x" * 1025, "password"),
    ],
)
def test_accounts_refuse_bad_names_and_passwords(name: str, password: str, part: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        create_account(name, password, actor=ROOT, origin="tests")
    assert list(refused.value.fields) == [part]
    assert password not in repr(refused.value) + str(refused.value)


def test_names_are_unique_whatever_their_case() -> None:
    create_account("Ann", PASSWORD, actor=ROOT, origin="tests")
    with pytest.raises(UsernameTaken):
        create_account("aNN", PASSWORD, actor=ROOT, origin="tests")
    assert User.objects.count() == 1
    assert create_account("王伟", PASSWORD, actor=ROOT, origin="tests").username == "王伟"


def test_the_table_of_sessions_holds_no_key_that_a_browser_could_send() -> None:
    client = signed_in(member("viewer"))
    key = client.cookies["ql_session"].value
    stored = SessionRow.objects.get().session_key
    assert stored != key and Api(client=client)("GET", "me").status_code == 200
    client.cookies["ql_session"] = stored
    assert Api(client=client)("GET", "me").status_code == 401
    client.cookies["ql_session"] = key
    client.post("/panel/logout/")
    assert not SessionRow.objects.exists()
    client.cookies["ql_session"] = key
    assert Api(client=client)("GET", "me").status_code == 401
