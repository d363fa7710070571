"""Links for somebody new in the panel: made, copied, listed, revoked; and the page that one opens."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from apps.access.models import Invitation, User
from apps.panel.views import coming_in
from apps.projects.services import set_project_status
from tests.access.test_invitations import roles
from tests.panel.kit import browser
from tests.people import PASSWORD, account, age_sign_ins, give, grant, member, project

pytestmark = pytest.mark.django_db
PEOPLE = "/panel/people/invitations/"
PROJECT = "/panel/p/default/invitations/"


@pytest.fixture(autouse=True)
def _patience() -> None:
    coming_in._wrong.clear()
    coming_in._tried.clear()


@pytest.fixture
def root() -> User:
    return account("root", administrator=True)


def link_of(html: str) -> str:
    """The link that a page shows, once."""
    found = re.findall(r'id="secret">(http://testserver/invitation/#ql3i_[A-Za-z0-9_-]{43})<', html)
    assert len(found) == 1
    return str(found[0])


def test_an_administrator_makes_a_link_and_somebody_new_comes_in(root: User) -> None:
    client = browser(root)
    assert PEOPLE in client.get("/panel/people/").content.decode()
    made = client.post(PEOPLE, {"username": "nina", "lifetime": "7", "administrator": "1"})
    link = link_of(made.content.decode())
    assert made.status_code == 201 and "data-copy" in made.content.decode()
    later = client.get(PEOPLE).content.decode()
    assert "ql3i_" not in later and "nina" in later and "instance administrator" in later
    newcomer = Client()
    page = newcomer.post("/invitation/", {"secret": link}).content.decode()
    assert "You will administer this installation" in page
    entered = newcomer.post("/invitation/", {"secret": link, "username": "nina", "password": PASSWORD})
    assert entered.headers["Location"] == "/panel/"
    assert newcomer.get("/panel/people/").status_code == 200
    assert "nina" not in client.get(PEOPLE).content.decode()


def test_whoever_gives_roles_invites_into_the_project(root: User) -> None:
    admin = member("admin", "adam")
    client = browser(admin)
    assert PROJECT in client.get("/panel/p/default/").content.decode()
    assert "Owner" not in client.get(PROJECT).content.decode().split("<form")[-1]
    made = client.post(PROJECT, {"username": "", "lifetime": "1", "role": "viewer", "administrator": "1"})
    link = link_of(made.content.decode())
    assert not Invitation.objects.get().is_administrator, "the page offers no such thing"
    assert "any name" in client.get(PROJECT).content.decode()
    Client().post("/invitation/", {"secret": link, "username": "nina", "password": PASSWORD})
    assert roles("nina") == {"default": "viewer"}
    assert client.post(PROJECT, {"lifetime": "1", "role": "owner"}).status_code == 403
    assert client.post(PROJECT, {"lifetime": "1", "role": ""}).status_code == 400
    viewer = browser(member("viewer", "vic"))
    assert (
        viewer.get(PROJECT).status_code == 403
        and PROJECT not in viewer.get("/panel/p/default/").content.decode()
    )


def test_an_administrator_promises_roles_only_where_they_give_them(root: User) -> None:
    member("owner", "boss")
    second = project(root)
    client = browser(root)
    sent = {"lifetime": "7", "role": "admin"}
    refused = client.post(PEOPLE, {**sent, "project": "default"})
    assert refused.status_code == 400 and 'href="#f-project"' in refused.content.decode()
    assert client.post(PEOPLE, {**sent, "project": second}).status_code == 201
    give(root, "viewer")
    assert client.post(PEOPLE, {**sent, "project": "default"}).status_code == 400
    assert client.post(PEOPLE, {"lifetime": "90"}).status_code == 400
    assert client.post(PEOPLE, {"lifetime": "7", "username": "a b"}).status_code == 400
    assert Invitation.objects.count() == 1


def test_a_link_is_revoked_by_whoever_looks_after_it(root: User) -> None:
    boss = member("owner", "boss")
    client = browser(boss)
    links = [
        link_of(client.post(PROJECT, {"lifetime": "1", "role": "viewer"}).content.decode()) for _ in range(2)
    ]
    first, second = Invitation.objects.order_by("created_at", "id")
    other = account("olga")
    project(other, "hers")
    assert browser(other).post(f"/panel/p/hers/invitations/{first.pk}/revoke/").status_code == 404
    set_project_status(grant(boss, "project.manage"), 1, "archived")
    assert str(first.pk) in client.get(PROJECT).content.decode()
    assert client.post(PROJECT, {"lifetime": "1", "role": "viewer"}).status_code == 409
    assert client.post(f"{PROJECT}{first.pk}/revoke/").status_code == 302
    assert browser(root).post(f"{PEOPLE}{second.pk}/revoke/").status_code == 302
    for link in links:
        answer = Client().post("/invitation/", {"secret": link})
        assert answer.status_code == 404 and "invitation_invalid" in answer.content.decode()
    assert client.post(f"{PROJECT}{first.pk}/revoke/").status_code == 404


def test_making_a_link_needs_a_fresh_sign_in(root: User) -> None:
    client = browser(root)
    age_sign_ins()
    sent = {"username": "nina", "lifetime": "7"}
    assert client.post(PEOPLE, sent).status_code == 403
    assert not Invitation.objects.exists()
    done = client.post(PEOPLE, {**sent, "confirm": "1", "confirm_password": PASSWORD})
    assert done.status_code == 201 and link_of(done.content.decode())


def test_the_pages_are_whole_in_chinese(root: User) -> None:
    html = browser(root, language="zh-hans").get(PEOPLE).content.decode()
    assert "邀请" in html and "Open links" not in html
    page = browser(language="zh-hans").post("/invitation/", {"secret": "ql3i_" + "x" * 43})
    assert "链接" in page.content.decode() and "not valid" not in page.content.decode()
