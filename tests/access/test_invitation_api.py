"""Invitations over the API: who makes, lists and revokes them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from apps.access.models import User
from apps.identity.services import set_subject_status
from apps.projects.services import set_project_status
from tests.access.test_invitations import code, come_in, into
from tests.people import (
    ROOT,
    Api,
    account,
    age_sign_ins,
    api,
    give,
    grant,
    member,
    other_subject,
    project,
    signed_in,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("patience")]


def test_administrators_make_list_and_revoke_over_the_api(root: User, boss: User) -> None:
    caller = Api(client=signed_in(root))
    made = caller("POST", "people/invitations", {"username": "nina", "is_administrator": True})
    assert made.status_code == 201
    shown = made.json()
    url = shown.pop("url")
    assert re.fullmatch(r"http://testserver/invitation/#ql3i_[A-Za-z0-9_-]{43}", url)
    assert shown["invited_by"] == {"type": "user", "id": root.subject_id} and shown["project"] is None
    into(boss, "viewer")
    items = caller("GET", "people/invitations").json()["items"]
    assert shown in items and len(items) == 2
    assert {item["role"] for item in items} == {None, "viewer"}
    assert "ql3i_" not in str(items)
    assert caller("DELETE", f"people/invitations/{shown['id']}").status_code == 204
    assert caller("DELETE", f"people/invitations/{shown['id']}").status_code == 404
    assert come_in(url).status_code == 404


def test_a_role_in_an_invitation_needs_the_right_in_its_project(root: User, boss: User) -> None:
    caller = api(root)
    for name in ("default", "none-such"):
        answer = caller("POST", "people/invitations", {"project": name, "role": "viewer"})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), "masked alike"
    give(root, "viewer")
    answer = caller("POST", "people/invitations", {"project": "default", "role": "viewer"})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    give(root, "admin", version=2)
    assert caller("POST", "people/invitations", {"project": "default", "role": "viewer"}).status_code == 201
    assert caller("POST", "people/invitations", {"project": "default", "role": "owner"}).status_code == 403
    for lacking in ({"project": "default"}, {"role": "viewer"}):
        assert caller("POST", "people/invitations", lacking).status_code == 400


def test_projects_keep_to_their_own_invitations(boss: User) -> None:
    admin = member("admin", "adam")
    other = account("olga")
    second = project(other)
    caller, elsewhere = api(admin), api(other)
    made = caller("POST", "projects/default/invitations", {"role": "operator", "expires_in_ms": 300_000})
    assert made.status_code == 201 and made.json()["project"] == {"id": "default", "slug": "default"}
    path = f"invitations/{made.json()['id']}"
    assert elsewhere("DELETE", f"projects/{second}/{path}").status_code == 404
    assert elsewhere("GET", f"projects/{second}/invitations").json()["items"] == []
    assert api(boss)("DELETE", f"projects/default/{path}").status_code == 204
    assert caller("POST", "projects/default/invitations", {"role": "owner"}).status_code == 403
    assert (
        caller(
            "POST", "projects/default/invitations", {"role": "viewer", "is_administrator": True}
        ).status_code
        == 400
    )
    assert caller("GET", "people/invitations").status_code == 403


def test_what_is_open_can_be_closed_while_the_project_is_archived(boss: User) -> None:
    into(boss, "viewer")
    set_project_status(grant(boss, "project.manage"), 1, "archived")
    caller = api(boss)
    (item,) = caller("GET", "projects/default/invitations").json()["items"]
    assert caller("POST", "projects/default/invitations", {"role": "viewer"}).status_code == 409
    assert caller("DELETE", f"projects/default/invitations/{item['id']}").status_code == 204


def test_agents_ask_and_narrow_tokens_do_not_invite(root: User, boss: User) -> None:
    agent = other_subject("agent")
    give(agent, "admin")
    answer = api(agent)("POST", "projects/default/invitations", {"role": "viewer"})
    assert (answer.status_code, answer.json()["code"]) == (409, "approval_required")
    assert api(boss, "*")("POST", "projects/default/invitations", {"role": "viewer"}).status_code == 403
    narrow = api(root, "run.read")
    assert narrow("POST", "people/invitations", {}).status_code == 403
    age_sign_ins()
    session = Api(client=signed_in(root))
    age_sign_ins()
    answer = session("POST", "people/invitations", {})
    assert (answer.status_code, answer.json()["code"]) == (403, "session_not_fresh")


def test_an_application_that_gives_roles_may_invite_while_it_may(boss: User) -> None:
    app = other_subject("api_app")
    give(app, "admin")
    urls = [
        api(app)("POST", "projects/default/invitations", {"role": "viewer"}).json()["url"] for _ in range(2)
    ]
    assert come_in(urls[0]).status_code == 302
    set_subject_status(app.id, 1, "disabled", actor=ROOT, origin="tests")
    assert code(come_in(urls[1], "second")) == "invitation_not_backed"


def test_listing_costs_the_same_for_many(root: User, boss: User, django_assert_num_queries: Any) -> None:
    caller = api(root)
    for _ in range(2):
        into(boss, "viewer")
    caller("GET", "people/invitations")
    with django_assert_num_queries(2):
        caller("GET", "people/invitations")
    for _ in range(20):
        into(boss, "viewer")
    with django_assert_num_queries(2):
        assert len(caller("GET", "people/invitations").json()["items"]) == 22
