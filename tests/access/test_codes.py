"""Codes of an app and recovery codes: each counts once, wrong ones cost time."""

from __future__ import annotations

import base64
import threading

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from django_otp.oath import hotp

from apps.access.errors import FactorPresent, SignInRefused, TooManyAttempts
from apps.access.factors import codes
from apps.access.models import CodeApp, RecoveryCode, SignIn, User
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.errors import NotFound
from apps.vault import keyring
from apps.vault.models import SealedPayload
from tests.conftest import Time
from tests.people import PASSWORD, account, member

pytestmark = pytest.mark.django_db
LOGIN = "/panel/login/"


@pytest.fixture(autouse=True)
def _keys(_db_helper: None = None) -> None:
    keyring.ensure()


def code(secret: str, offset: int = 0) -> str:
    return f"{hotp(base64.b32decode(secret), clock.now_ms() // 30_000 + offset):06d}"


def enrolled(user: User) -> tuple[str, list[str]]:
    made = codes.begin_code_app(user, "panel.example")
    recovery = codes.confirm_code_app(user, code(made.secret, -1))
    return made.secret, recovery


def test_a_key_counts_from_its_first_right_code_on(time: Time) -> None:
    user = account("ann")
    made = codes.begin_code_app(user, "panel.example")
    assert made.secret in made.uri and made.uri.startswith("otpauth://totp/QingLong%3Aann%40panel.example?")
    assert made.secret not in repr(made)
    assert not codes.has_second_factor(user)
    with pytest.raises(SignInRefused):
        codes.confirm_code_app(user, "000000" if code(made.secret) != "000000" else "000001")
    time.advance(1000)
    CodeApp.objects.update(throttling_failure_count=0)
    recovery = codes.confirm_code_app(user, code(made.secret))
    assert len(set(recovery)) == 10 and codes.has_second_factor(user)
    with pytest.raises(FactorPresent):
        codes.begin_code_app(user, "panel.example")


def test_neither_the_key_nor_a_recovery_code_is_stored_in_clear() -> None:
    user = account("ann")
    secret, recovery = enrolled(user)
    stored = str(list(SealedPayload.objects.values())) + str(list(CodeApp.objects.values()))
    assert secret not in stored
    digests = str(list(RecoveryCode.objects.values()))
    assert all(one not in digests and one.replace("-", "") not in digests for one in recovery)
    assert secret not in str(list(AuditEntry.objects.values()))


def test_a_step_counts_once(time: Time) -> None:
    user = account("ann")
    secret, _recovery = enrolled(user)
    now = code(secret)
    assert codes.use_code(user, f" {now[:3]} {now[3:]} ") == "code"
    with pytest.raises(SignInRefused):
        codes.use_code(user, now)
    CodeApp.objects.update(throttling_failure_count=0)
    with pytest.raises(SignInRefused):  # an older step than the one used, though within the tolerance
        codes.use_code(user, code(secret, -1))
    CodeApp.objects.update(throttling_failure_count=0)
    time.advance(30_000)
    assert codes.use_code(user, code(secret)) == "code"


def test_codes_of_other_times_are_wrong() -> None:
    user = account("ann")
    secret, _recovery = enrolled(user)
    for offset in (-3, 2):
        CodeApp.objects.update(throttling_failure_count=0)
        with pytest.raises(SignInRefused):
            codes.use_code(user, code(secret, offset))
    for text in ("", "12345", "1234567", "١٢٣٤٥٦", "abcdef", "x" * 5000):
        CodeApp.objects.update(throttling_failure_count=0)
        with pytest.raises(SignInRefused):
            codes.use_code(user, text)


def test_each_wrong_code_doubles_the_wait_and_a_right_one_ends_it() -> None:
    user = account("ann")
    secret, _recovery = enrolled(user)
    wrong = "000000" if code(secret) != "000000" else "000001"
    with pytest.raises(SignInRefused):
        codes.use_code(user, wrong)
    with pytest.raises(TooManyAttempts) as refused:
        codes.use_code(user, code(secret))
    assert refused.value.extra["retry_after"] == 1
    app = CodeApp.objects.get()
    assert app.throttling_failure_count == 1
    CodeApp.objects.update(
        throttling_failure_timestamp=timezone.now() - timezone.timedelta(hours=1), throttling_failure_count=9
    )
    assert codes.use_code(user, code(secret)) == "code"
    assert CodeApp.objects.get().throttling_failure_count == 0


def test_a_recovery_code_works_once_and_for_its_person_only() -> None:
    ann, bob = account("ann"), account("bob")
    _secret, recovery = enrolled(ann)
    enrolled(bob)
    with pytest.raises(SignInRefused):
        codes.use_code(bob, recovery[0])
    assert codes.use_code(ann, recovery[0].upper()) == "recovery"
    with pytest.raises(SignInRefused):
        codes.use_code(ann, recovery[0])
    assert codes.recovery_codes_left(ann) == 9
    fresh = codes.renew_recovery_codes(ann)
    with pytest.raises(SignInRefused):
        codes.use_code(ann, recovery[1])
    assert codes.use_code(ann, fresh[0]) == "recovery"


def test_taking_the_app_away_takes_key_and_recovery_codes() -> None:
    user = account("ann")
    enrolled(user)
    codes.remove_code_app(user)
    assert not CodeApp.objects.exists() and not RecoveryCode.objects.exists()
    assert not SealedPayload.objects.exists() and not codes.has_second_factor(user)
    with pytest.raises(NotFound):
        codes.remove_code_app(user)
    with pytest.raises(NotFound):
        codes.renew_recovery_codes(user)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["code", "recovery"])
def test_two_at_once_take_a_code_once(seeded: None, kind: str) -> None:
    keyring.ensure()
    user = account("ann")
    secret, recovery = enrolled(user)
    text = code(secret) if kind == "code" else recovery[0]
    ready = threading.Barrier(4)
    outcomes: list[str] = []

    def take() -> None:
        try:
            ready.wait()
            outcomes.append(codes.use_code(User.objects.get(pk=user.pk), text))
        except (SignInRefused, TooManyAttempts):
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == sorted([kind, "refused", "refused", "refused"])


def test_a_right_password_alone_opens_nothing_when_a_factor_is_due() -> None:
    user = member("owner", "ann")
    secret, _recovery = enrolled(user)
    client = Client()
    answer = client.post(LOGIN, {"username": "ann", "password": PASSWORD, "next": "/panel/keys/"})
    assert (answer.status_code, answer.headers["Location"]) == (
        302, "/panel/login/second/?next=%2Fpanel%2Fkeys%2F",
    )  # fmt: skip
    assert not SignIn.objects.exists()
    assert client.get("/panel/").status_code == 302
    assert client.get("/api/v3/me").status_code == 401
    half_way = client.cookies["ql_session"].value
    answer = client.post("/panel/login/second/", {"code": code(secret), "next": "/panel/keys/"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/panel/keys/")
    assert SignIn.objects.get().assurance == "multi_factor"
    assert client.get("/api/v3/me").json()["assurance"] == "multi_factor"
    stale = Client()
    stale.cookies["ql_session"] = half_way
    assert stale.get("/panel/").status_code == 302
    assert stale.post("/panel/login/second/", {"code": code(secret, 1)}).status_code == 302
    assert SignIn.objects.count() == 1


def test_the_half_way_state_is_of_one_browser_and_ten_minutes(time: Time) -> None:
    user = member("owner", "ann")
    secret, _recovery = enrolled(user)
    client = Client()
    assert client.post("/panel/login/second/", {"code": code(secret)}).headers["Location"] == LOGIN
    client.post(LOGIN, {"username": "ann", "password": PASSWORD})
    time.advance(600_000)
    assert client.post("/panel/login/second/", {"code": code(secret)}).headers["Location"] == LOGIN
    assert not SignIn.objects.exists()


def test_disabling_between_the_steps_closes_the_door() -> None:
    from apps.identity.services import set_subject_status
    from tests.people import ROOT

    user = member("owner", "ann")
    secret, _recovery = enrolled(user)
    client = Client()
    client.post(LOGIN, {"username": "ann", "password": PASSWORD})
    set_subject_status(user.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    assert client.post("/panel/login/second/", {"code": code(secret)}).status_code == 401
    assert not SignIn.objects.exists()


def test_projects_33_a_session_by_password_stays_single_factor() -> None:
    user = member("owner", "ann")
    client = Client()
    client.post(LOGIN, {"username": "ann", "password": PASSWORD})
    enrolled(user)
    assert client.get("/api/v3/me").json()["assurance"] == "single_factor"
