"""One's own security page, people and applications, as browsers without scripts use them."""

from __future__ import annotations

import base64
import re

import pytest
from django.test import Client
from django_otp.oath import hotp

from apps.access.models import ApiToken, Application, CodeApp, SignIn, User
from apps.access.services import create_application
from apps.core import clock
from apps.identity.models import IdentitySubject
from apps.projects.queries import roles_of
from apps.vault import keyring
from tests.panel.kit import browser
from tests.people import PASSWORD, ROOT, Api, account, age_sign_ins, member, signed_in, subject

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _keys(db: None) -> None:
    keyring.ensure()


def code(secret: str, offset: int = 0) -> str:
    return f"{hotp(base64.b32decode(secret), clock.now_ms() // 30_000 + offset):06d}"


def shown_key(client: Client) -> str:
    html = client.get("/panel/security/app/").content.decode()
    assert "<svg" in html and "style=" not in html[html.index("<svg") :]
    found = re.search(r'id="secret">([A-Z2-7 ]+)<', html)
    assert found is not None
    return found[1].replace(" ", "")


def test_an_app_is_set_up_used_and_removed() -> None:
    member("owner", "ann")
    client = browser(User.objects.get())
    assert client.get("/panel/security/app/").headers["Location"] == "/panel/security/"
    assert client.post("/panel/security/app/begin/").headers["Location"] == "/panel/security/app/"
    secret = shown_key(client)
    wrong = client.post("/panel/security/app/", {"code": "000000" if code(secret) != "000000" else "000001"})
    assert wrong.status_code == 401 and secret[:4] in wrong.content.decode()
    CodeApp.objects.update(throttling_failure_count=0)
    done = client.post("/panel/security/app/", {"code": code(secret, -1)})
    assert done.status_code == 201
    recovery = re.findall(r"\b[a-z2-9]{4}(?:-[a-z2-9]{4}){3}\b", done.content.decode())
    assert len(recovery) == 10
    assert secret not in client.get("/panel/security/").content.decode()
    assert client.get("/panel/security/app/").status_code == 302, "the key is shown no more"
    at_door = Client()
    at_door.post("/panel/login/", {"username": "ann", "password": PASSWORD})
    page = at_door.get("/panel/login/second/").content.decode()
    assert "ann" in page and 'autocomplete="one-time-code"' in page
    assert at_door.post("/panel/login/second/", {"code": recovery[0]}).status_code == 302
    assert at_door.get("/panel/").status_code == 200
    assert client.post("/panel/security/codes/").status_code == 201
    assert client.post("/panel/security/app/remove/").status_code == 302
    assert not CodeApp.objects.exists()


def test_factors_are_changed_only_by_who_just_showed_who_it_is() -> None:
    client = browser(member("owner", "ann"))
    age_sign_ins()
    for path in ("app/begin/", "app/", "app/remove/", "codes/", "passkeys/add/", "passkeys/1/remove/"):
        answer = client.post(f"/panel/security/{path}")
        assert answer.status_code == 403 and "session_not_fresh" in answer.content.decode(), path
    assert not CodeApp.objects.exists()


def test_sessions_are_listed_and_ended() -> None:
    user = member("owner", "ann")
    client = browser(user)
    other = signed_in(user, headers={"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"})
    html = client.get("/panel/security/").content.decode()
    assert "Firefox, Linux" in html and "this one" in html
    that = SignIn.objects.get(agent__contains="Firefox")
    stranger = browser(member("viewer", "bob"))
    assert stranger.post(f"/panel/security/sessions/{that.pk}/end/").status_code == 404
    assert client.post(f"/panel/security/sessions/{that.pk}/end/").status_code == 302
    assert other.get("/panel/").status_code == 302
    signed_in(user)
    client.post("/panel/security/sessions/end/")
    assert SignIn.objects.filter(user=user).count() == 1 and client.get("/panel/").status_code == 200


def test_a_person_is_disabled_and_enabled_on_their_page() -> None:
    root = browser(member("owner", "root", administrator=True))
    ann = member("viewer", "ann")
    theirs = signed_in(ann)
    page = f"/panel/people/{ann.subject_id}/"
    html = root.get(page).content.decode()
    assert "1 session ends at once" in html and "stop until" not in html
    root.post(f"{page}change/", {"change": "disable", "version": "1"})
    assert IdentitySubject.objects.get(pk=ann.subject_id).status == "disabled"
    assert theirs.get("/panel/").status_code == 302
    root.post(f"{page}change/", {"change": "enable", "version": "1"})
    assert IdentitySubject.objects.get(pk=ann.subject_id).status == "disabled", "a stale form changes nothing"
    root.post(f"{page}change/", {"change": "enable", "version": "2"})
    root.post(f"{page}change/", {"change": "administrator", "version": "3"})
    assert User.objects.get(username="ann").is_superuser
    own = f"/panel/people/{User.objects.get(username='root').subject_id}/"
    assert "/change/" not in root.get(own).content.decode()
    root.post(f"{own}change/", {"change": "disable", "version": "1"})
    assert root.get("/panel/").status_code == 200
    assert browser(member("owner", "bob")).get(page).status_code == 403


def test_an_agent_is_made_given_a_role_and_a_token() -> None:
    root = browser(member("owner", "root", administrator=True))
    made = root.post("/panel/applications/", {"type": "agent", "name": "release-bot", "description": ""})
    bot = Application.objects.get()
    page = f"/panel/applications/{bot.pk}/"
    assert made.headers["Location"] == page
    root.post("/panel/p/default/roles/", {"username": "release-bot", "role": "viewer"})
    form = {
        "name": "ci",
        "preset": "read",
        "lifetime": "90",
        "kind": "token",
        "addresses": "127.0.0.1 10.0.0.0/8",
    }
    created = root.post(page, form)
    found = re.search(r"ql3t_[A-Za-z0-9_-]{43}", created.content.decode())
    assert created.status_code == 201 and found is not None
    caller = Api(found[0])
    assert caller("GET", "projects/default").status_code == 200
    token = ApiToken.objects.get()
    assert token.addresses == ["10.0.0.0/8", "127.0.0.1/32"]
    rotated = root.post(f"{page}tokens/{token.pk}/rotate/").content.decode()
    assert "works for 24 hours more" in rotated and "release-bot" in rotated
    assert caller("GET", "me").status_code == 200
    root.post(f"{page}tokens/{token.pk}/revoke/")
    assert caller("GET", "me").status_code == 401
    root.post(f"{page}change/", {"version": "1", "name": "bot", "description": "x"})
    assert "release-bot" not in root.get("/panel/applications/").content.decode()
    root.post(f"{page}change/", {"version": "2", "change": "disable", "name": "x"})
    assert IdentitySubject.objects.get(pk=bot.pk).status == "disabled"
    assert [one.role for one in roles_of(subject_of(bot))] == ["viewer"]


def subject_of(row: Application):  # type: ignore[no-untyped-def]
    from apps.identity.principals import PolicySubject

    return PolicySubject(row.subject.type, row.pk)


def test_tokens_of_applications_are_not_reached_through_own_pages() -> None:
    user = member("owner", "ann")
    bot = create_application("agent", "bot", actor=ROOT, origin="tests")
    from apps.access.scopes import Credential
    from apps.access.services import create_token

    made = create_token(
        subject_of(bot), name="x", scopes=["*"], maker=Credential("session"), origin="tests"
    ).token
    client = browser(user)
    for path in (f"/panel/tokens/{made.pk}/rotate/", f"/panel/tokens/{made.pk}/revoke/"):
        assert client.post(path).status_code == 404
    assert client.get(f"/panel/applications/{bot.pk}/").status_code == 403
    assert account("else") and subject(user)
