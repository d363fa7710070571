"""People, applications, sessions and the exchange over the API."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.test import Client

from apps.access.models import ApiToken, SignIn, User
from apps.audit.models import AuditEntry
from tests.people import PASSWORD, Api, account, age_sign_ins, api, give, member, signed_in, subject

pytestmark = pytest.mark.django_db


@pytest.fixture
def root() -> User:
    return member("owner", "root", administrator=True)


@pytest.fixture
def browser(root: User) -> Api:
    return Api(client=signed_in(root))


def test_disabling_a_person_stops_everything_at_the_next_call(root: User, browser: Api) -> None:
    ann = member("operator", "ann")
    session, caller = Api(client=signed_in(ann)), api(ann)
    assert session("GET", "me").status_code == caller("GET", "me").status_code == 200
    answer = browser("PATCH", f"people/{ann.subject_id}", {"status": "disabled"}, If_Match='"1"')
    assert (answer.status_code, answer.json()["status"], answer["ETag"]) == (200, "disabled", '"2"')
    assert session("GET", "me").status_code == caller("GET", "me").status_code == 401
    assert Client().post("/panel/login/", {"username": "ann", "password": PASSWORD}).status_code == 401
    stale = browser("PATCH", f"people/{ann.subject_id}", {"status": "active"}, If_Match='"1"')
    assert (stale.status_code, stale.json()["code"]) == (409, "version_conflict")
    browser("PATCH", f"people/{ann.subject_id}", {"status": "active"}, If_Match='"2"')
    assert caller("GET", "me").json()["roles"][0]["role"] == "operator", "roles and tokens are as they were"
    assert session("GET", "me").status_code == 401, "sessions have to be begun anew"


def test_projects_36_immediate_disable(root: User, browser: Api) -> None:
    """Two clients stand for two replicas: nothing is kept between requests."""
    ann = member("viewer", "ann")
    clients = [signed_in(ann), signed_in(ann)]
    browser("PATCH", f"people/{ann.subject_id}", {"status": "disabled"}, If_Match='"1"')
    assert [client.get("/api/v3/me").status_code for client in clients] == [401, 401]
    assert [client.get("/panel/").status_code for client in clients] == [302, 302]
    browser("PATCH", f"people/{ann.subject_id}", {"status": "active"}, If_Match='"2"')
    assert Api(client=signed_in(ann))("GET", "projects/default").status_code == 200


def test_an_administrator_stays(root: User, browser: Api) -> None:
    path = f"people/{root.subject_id}"
    for change in ({"status": "disabled"}, {"is_administrator": False}):
        answer = browser("PATCH", path, change, If_Match='"1"')
        assert (answer.status_code, answer.json()["code"]) == (409, "not_yourself")
    second = account("second", administrator=True)
    other = Api(client=signed_in(second))
    assert other("PATCH", path, {"is_administrator": False}, If_Match='"1"').status_code == 200
    assert browser("GET", "people").status_code == 403
    third = account("third")
    browser_of_second = other(
        "PATCH", f"people/{third.subject_id}", {"is_administrator": True}, If_Match='"1"'
    )
    assert browser_of_second.status_code == 200
    taken = Api(client=signed_in(third))(
        "PATCH", f"people/{second.subject_id}", {"status": "disabled"}, If_Match='"1"'
    )
    assert taken.status_code == 200
    last = AuditEntry.objects.filter(action__startswith="administrator.").count()
    assert last == 2
    assert AuditEntry.objects.filter(action="subject.enabled").count() == 0, "what did not happen is not told"


def test_what_changes_who_may_come_in_needs_a_fresh_session(root: User, browser: Api) -> None:
    ann = account("ann")
    age_sign_ins()
    calls = [
        ("POST", "people", {"username": "x", "password": PASSWORD}, {}),
        ("PATCH", f"people/{ann.subject_id}", {"status": "disabled"}, {"If_Match": '"1"'}),
        ("POST", "applications", {"type": "agent", "name": "x"}, {}),
        ("POST", "tokens", {"name": "x", "scopes": ["run.read"]}, {}),
        ("POST", "projects/default/role-bindings", {}, {}),
    ]
    for method, path, body, headers in calls:
        answer = browser(method, path, body, **headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "session_not_fresh"), path
    assert browser("GET", "people").status_code == 200


def test_people_are_listed_with_their_ways(root: User, browser: Api) -> None:
    made = browser("POST", "people", {"username": "ann", "password": PASSWORD})
    assert made.status_code == 201 and "password" not in made.json()
    path = f"people/{made.json()['id']}"
    person = browser("GET", path).json()
    assert [way["provider"] for way in person["ways"]] == ["local"] and person["sessions"] == 0
    assert {item["username"] for item in browser("GET", "people").json()["items"]} == {"root", "ann"}
    signed_in(User.objects.get(username="ann"))
    assert browser("GET", path).json()["sessions"] == 1
    assert browser("DELETE", f"{path}/sessions").status_code == 204
    assert browser("GET", path).json()["sessions"] == 0
    assert browser("GET", "people/usr_nobody").status_code == 404


def test_a_person_sees_and_ends_own_sessions(root: User, browser: Api) -> None:
    other = signed_in(root)
    items = browser("GET", "sessions").json()["items"]
    assert sorted(item["current"] for item in items) == [False, True]
    assert not {"digest", "provider_session"} & items[0].keys()
    that = next(item["id"] for item in items if not item["current"])
    stranger = api(member("viewer"))
    assert stranger("DELETE", f"sessions/{that}").status_code == 404
    assert browser("DELETE", f"sessions/{that}").status_code == 204
    assert other.get("/api/v3/me").status_code == 401 and SignIn.objects.count() == 1


def test_an_agent_is_made_and_given_a_token(root: User, browser: Api) -> None:
    made = browser("POST", "applications", {"type": "agent", "name": "release-bot"})
    assert made.status_code == 201 and made["ETag"] == '"1"'
    agent = made.json()
    assert agent["id"].startswith("agt_") and agent["status"] == "active"
    given = browser(
        "POST", "projects/default/role-bindings",
        {"subject_type": "agent", "subject_id": agent["id"], "role": "operator", "expected_version": 0,
         "mutation_id": "m1"},
    )  # fmt: skip
    assert given.status_code == 201
    path = f"applications/{agent['id']}/tokens"
    created = browser("POST", path, {"name": "ci", "scopes": ["*"], "addresses": ["127.0.0.1"]})
    assert created.status_code == 201
    caller = Api(created.json()["token"])
    assert caller("GET", "me").json()["subject"] == {"type": "agent", "id": agent["id"]}
    assert caller("GET", "applications").status_code == 403
    rotated = browser("POST", f"{path}/{created.json()['id']}/rotate", {"overlap_ms": 0})
    assert caller("GET", "me").status_code == 401
    caller = Api(rotated.json()["token"])
    assert caller("GET", "me").status_code == 200
    listed = browser("GET", path).json()["items"]
    assert len(listed) == 1 and "token" not in listed[0]
    assert browser("DELETE", f"{path}/{created.json()['id']}").status_code == 204
    assert caller("GET", "me").status_code == 401
    changed = browser(
        "PATCH", f"applications/{agent['id']}", {"name": "bot", "status": "disabled"}, If_Match='"1"'
    )
    assert (changed.json()["name"], changed.json()["status"], changed.json()["version"]) == (
        "bot",
        "disabled",
        2,
    )


def test_a_token_makes_no_credentials_without_that_scope(root: User) -> None:
    agent = api(root)("POST", "applications", {"type": "agent", "name": "x"}).json()["id"]
    caller = api(root, "*")
    path = f"applications/{agent}/tokens"
    answer = caller("POST", path, {"name": "x", "scopes": ["run.read"]})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    narrow = api(root, "instance.manage", "token.manage", "run.read")
    assert narrow("POST", path, {"name": "x", "scopes": ["run.start"]}).json()["code"] == "scope_exceeded"
    assert narrow("POST", path, {"name": "x", "scopes": ["run.read"]}).status_code == 201


def exchange(client_id: str, secret: str, header: bool = True, **form: str) -> Any:
    sent = {"grant_type": "client_credentials", **form}
    headers = {}
    if header:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    else:
        sent |= {"client_id": client_id, "client_secret": secret}
    return Client(enforce_csrf_checks=True).post("/oauth/token", sent, headers=headers)


def test_the_exchange_speaks_as_the_rfc(root: User, browser: Api) -> None:
    app = browser("POST", "applications", {"type": "api_app", "name": "ci"}).json()["id"]
    made = browser(
        "POST", f"applications/{app}/tokens", {"name": "c", "scopes": ["run.read"], "kind": "client"}
    )
    secret = made.json()["token"]
    for header in (True, False):
        answer = exchange(app, secret, header)
        assert answer.status_code == 200 and answer["Cache-Control"] == "no-store" and not answer.cookies
        body = answer.json()
        assert (body["token_type"], body["scope"]) == ("Bearer", "run.read") and 3500 < body[
            "expires_in"
        ] <= 3600
        assert Api(body["access_token"])("GET", "me").json()["subject"] == {"type": "api_app", "id": app}
    wrong = exchange(app, secret[:-1] + ("A" if secret[-1] != "A" else "B"))
    assert (wrong.status_code, wrong.json()) == (401, {"error": "invalid_client"})
    assert wrong["WWW-Authenticate"].startswith("Basic")
    assert exchange("usr_x", secret).content == wrong.content
    assert exchange(app, secret, scope="run.start").json() == {"error": "invalid_scope"}
    assert exchange(app, secret, scope="run.read").status_code == 200
    assert exchange(app, secret, grant_type="password").json() == {"error": "unsupported_grant_type"}
    both = Client().post(
        "/oauth/token", {"grant_type": "client_credentials", "client_secret": secret, "client_id": app},
        headers={"Authorization": "Basic eDp5"},
    )  # fmt: skip
    assert both.status_code == 401
    assert Client().get(f"/oauth/token?client_id={app}&client_secret={secret}").status_code == 405
    listed = browser("GET", f"applications/{app}/tokens").json()["items"]
    assert [item["kind"] for item in listed] == ["client"] and listed[0]["last_used_at"]
    assert ApiToken.objects.filter(kind="access").count() == 3
    assert secret not in str(list(AuditEntry.objects.values()))


def test_roles_are_kept_apart_from_administration(root: User) -> None:
    admin = account("admin2", administrator=True)
    assert api(admin)("GET", "projects/default").status_code == 404
    give(admin, "viewer")
    assert api(admin)("GET", "projects/default").status_code == 200
    assert subject(admin).id == admin.subject_id
