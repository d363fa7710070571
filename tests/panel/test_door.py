"""Signing in and out, the set-up link, language and theme."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.test import Client

from apps.access.models import User
from apps.core import clock
from apps.identity.services import set_subject_status
from apps.projects.services.bootstrap import Issued, console_issuer, issue_owner_bootstrap
from tests.panel.kit import LOGIN, browser
from tests.people import PASSWORD, ROOT, member

pytestmark = pytest.mark.django_db


def sign_in(client: Client, name: str, password: str, **extra: str) -> Any:
    return client.post(LOGIN, {"username": name, "password": password, **extra})


@pytest.mark.parametrize(
    ("wanted", "leads_to"),
    [
        ("/panel/p/default/runs/?status=failed", "/panel/p/default/runs/?status=failed"),
        ("https://evil.example/", "/panel/"),
        ("//evil.example/", "/panel/"),
        ("javascript:alert(1)", "/panel/"),
        ("", "/panel/"),
    ],
)
def test_next_leads_nowhere_else(wanted: str, leads_to: str) -> None:
    member("owner", "ann")
    answer = sign_in(browser(), "ann", PASSWORD, next=wanted)
    assert (answer.status_code, answer.headers["Location"]) == (302, leads_to)


def test_a_page_without_a_session_leads_to_sign_in_and_back() -> None:
    answer = browser().get("/panel/p/default/tasks/?show=disabled")
    assert answer.status_code == 302
    assert answer.headers["Location"] == f"{LOGIN}?next=%2Fpanel%2Fp%2Fdefault%2Ftasks%2F%3Fshow%3Ddisabled"
    assert browser().get("/panel/", headers={"X-Part": "1"}).status_code == 401


def test_the_same_answer_for_an_unknown_name_and_a_wrong_password() -> None:
    member("owner", "ann")
    bob = member("viewer", "bob")
    set_subject_status(bob.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    texts = set()
    for name, password in (("ann", "wrong"), ("nobody", PASSWORD), ("bob", PASSWORD)):
        answer = sign_in(browser(), name, password)
        assert answer.status_code == 401
        html = answer.content.decode().replace(f'value="{name}"', "")
        texts.add(html[html.index('role="alert"') : html.index("<form")])
    assert len(texts) == 1 and "sign_in_refused" in texts.pop()


def test_too_many_failures_say_how_long_to_wait() -> None:
    member("owner", "ann")
    client = browser()
    for _ in range(5):
        assert sign_in(client, "ann", "wrong").status_code == 401
    answer = sign_in(client, "ann", PASSWORD)
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0
    assert "too_many_attempts" in answer.content.decode() and "seconds" in answer.content.decode()


def test_signing_out_is_a_post() -> None:
    client = browser(member("owner", "ann"))
    assert client.get("/panel/logout/").status_code == 405
    assert client.get("/panel/").status_code == 200
    assert client.post("/panel/logout/").status_code == 302
    assert client.get("/panel/").status_code == 302


def test_a_form_without_its_token_is_refused_in_words() -> None:
    member("owner", "ann")
    answer = browser(csrf=True).post(LOGIN, {"username": "ann", "password": PASSWORD})
    assert answer.status_code == 403 and "csrf_failed" in answer.content.decode()


def test_language_and_theme_are_switches_for_everybody() -> None:
    client = browser()
    answer = client.post("/i18n", {"language": "zh-hans", "next": LOGIN})
    assert answer.headers["Location"] == LOGIN
    assert 'lang="zh-hans"' in client.get(LOGIN).content.decode()
    client.post("/panel/theme/", {"theme": "dark", "next": LOGIN})
    assert 'data-theme="dark"' in client.get(LOGIN).content.decode()
    client.post("/panel/theme/", {"theme": '"><script>'})
    assert 'data-theme="dark"' in client.get(LOGIN).content.decode()


def issued() -> Issued:
    return issue_owner_bootstrap("default", console_issuer())


def link(made: Issued) -> str:
    return f"{made.challenge_id}.{made.token}"


def test_the_set_up_link_makes_the_first_account_once() -> None:
    made = issued()
    client = browser()
    page = client.get("/setup", {"token": link(made)})
    assert page.status_code == 200 and "at least 10 characters" in page.content.decode()
    answer = client.post("/setup", {"token": link(made), "username": "ann", "password": PASSWORD})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/panel/")
    dashboard = client.get("/panel/").content.decode()
    assert "The first minute" in dashboard and "/panel/workers/" in dashboard
    again = browser().get("/setup", {"token": link(made)})
    assert again.status_code == 409 and "set up already" in again.content.decode()


def test_a_bad_password_keeps_the_link_and_says_why() -> None:
    made = issued()
    client = browser()
    answer = client.post("/setup", {"token": link(made), "username": "ann", "password": "short"})
    html = answer.content.decode()
    assert answer.status_code == 400 and "too short" in html
    assert f'action="/setup?token={link(made)}"' in html
    client.post("/i18n", {"language": "zh-hans", "next": LOGIN})
    again = client.post("/setup", {"token": link(made), "username": "ann", "password": "short"})
    assert "密码太短" in again.content.decode() and "too short" not in again.content.decode()
    assert not User.objects.exists()
    assert (
        client.post("/setup", {"token": link(made), "username": "ann", "password": PASSWORD}).status_code
        == 302
    )


@pytest.mark.parametrize("token", ["", "x", "a.b", "../../etc", "é" * 30])
def test_an_incomplete_link_says_how_to_get_a_new_one(token: str) -> None:
    issued()
    answer = browser().get("/setup", {"token": token})
    assert answer.status_code == 403 and "qinglong setup --username" in answer.content.decode()
    assert (
        browser().post("/setup", {"token": token, "username": "a", "password": PASSWORD}).status_code == 403
    )


def test_an_expired_link_and_a_wrong_token_make_no_account() -> None:
    made = issued()
    with clock.fixed(lambda: clock.to_ms(made.expires_at + datetime.timedelta(seconds=1))):
        assert browser().get("/setup", {"token": link(made)}).status_code == 403
        answer = browser().post("/setup", {"token": link(made), "username": "ann", "password": PASSWORD})
        assert answer.status_code == 403
    wrong = f"{made.challenge_id}.{'A' * len(made.token)}"
    assert (
        browser().post("/setup", {"token": wrong, "username": "ann", "password": PASSWORD}).status_code == 403
    )
    assert not User.objects.exists()


def test_guesses_at_a_name_before_it_exists_do_not_spoil_the_set_up() -> None:
    made = issued()
    client = Client()
    for _ in range(5):
        sign_in(client, "founder", "guess")
    answer = client.post(
        "/setup", {"token": f"{made.challenge_id}.{made.token}", "username": "founder", "password": PASSWORD}
    )
    assert (answer.status_code, answer.headers["Location"]) == (302, "/panel/login/")
    assert User.objects.get().username == "founder"
