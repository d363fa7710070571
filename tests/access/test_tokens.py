"""API tokens: what they may do, who makes them, how they end."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.access.models import ApiToken
from apps.access.scopes import Credential
from apps.core import clock
from apps.identity.services import set_subject_status
from tests.conftest import Time
from tests.people import ROOT, Api, account, api, give, member, other_subject, project, signed_in, token

pytestmark = pytest.mark.django_db


def make(caller: Api, **values: Any) -> Any:
    return caller("POST", "tokens", {"name": "ci", "scopes": ["run.read"], **values})


def test_a_fresh_session_makes_and_revokes(time: Time) -> None:
    caller = Api(client=signed_in(member("viewer")))
    answer = make(caller)
    assert answer.status_code == 201
    made = answer.json()
    secret = made.pop("token")
    assert secret.startswith("ql3t_") and len(secret) == 48
    assert caller("GET", "tokens").json()["items"] == [made]
    row = ApiToken.objects.get()
    assert secret not in str(ApiToken.objects.values().get()) and len(row.digest) == 64
    assert Api(secret)("GET", "me").status_code == 200
    assert caller("DELETE", f"tokens/{made['id']}").status_code == 204
    assert Api(secret)("GET", "me").status_code == 401
    assert caller("DELETE", f"tokens/{made['id']}").status_code == 404
    assert caller("GET", "tokens").json()["items"] == []
    time.advance(15 * 60_000)
    stale = make(caller)
    assert (stale.status_code, stale.json()["code"]) == (403, "session_not_fresh")


def test_no_token_makes_a_wider_one() -> None:
    user = member("owner")
    star = make(Api(token(user, "*")))
    assert star.status_code == 403
    caller = Api(token(user, "token.manage", "run.read"))
    assert make(caller).status_code == 201
    for scopes in (["*"], ["run.start"], ["run.read", "secret.manage"]):
        answer = make(caller, scopes=scopes)
        assert (answer.status_code, answer.json()["code"]) == (403, "scope_exceeded")
    both = Api(token(user, "*", "token.manage"))
    assert make(both, scopes=["*", "run.start", "tool.call:deploy"]).status_code == 201
    assert make(both, scopes=["policy.manage"]).status_code == 403


def test_no_token_makes_one_that_outlives_it_or_leaves_its_project() -> None:
    user = member("owner")
    soon = clock.from_ms(clock.now_ms() + 60_000)
    later = clock.rfc3339(clock.from_ms(clock.now_ms() + 120_000))
    caller = Api(token(user, "token.manage", "run.read", expires_at=soon))
    assert make(caller).status_code == 403
    assert make(caller, expires_at=later).status_code == 403
    assert make(caller, expires_at=clock.rfc3339(soon)).status_code == 201
    bound = Api(token(user, "token.manage", "run.read", project_id="default"))
    assert make(bound).status_code == 403
    made = make(bound, project="default")
    assert made.json()["project"] == {"id": "default", "slug": "default"}
    foreign = ApiToken.objects.filter(project=None).first()
    assert foreign is not None
    assert bound("DELETE", f"tokens/{foreign.id}").status_code == 404


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["run.*"]}, "scopes"),
        ({"scopes": ["run.read"] * 65}, "scopes"),
        ({"scopes": "run.read"}, "scopes"),
        ({"name": ""}, "name"),
        ({"name": "a\x02"}, "name"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"digest": "x"}, "digest"),
    ],
)
def test_bad_input_names_the_field(values: dict[str, Any], part: str) -> None:
    answer = make(api(member("owner")), **values)
    assert answer.status_code == 400
    assert any(name.split(".")[0] == part for name in answer.json()["errors"])


def test_a_project_one_has_no_role_in_does_not_exist() -> None:
    other = project(account("else"), "theirs")
    caller = api(member("owner"))
    answers = [make(caller, project=name) for name in ("theirs", other, "none-such")]
    # Nor does another mistake in the same request bring it to light.
    answers += [
        make(caller, project=name, **mistake)
        for name in ("theirs", other, "none-such")
        for mistake in (
            {"scopes": ["run.*"]}, {"name": "a\x02"}, {"expires_at": "2020-01-01T00:00:00Z"},
        )
    ]  # fmt: skip
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.content for answer in answers}) == 1


def test_a_token_of_one_project_sees_no_other() -> None:
    user = member("owner")
    project(user, "second")
    make(Api(client=signed_in(user)), project="second", name="hidden")
    bound = Api(token(user, "token.manage", "run.read", project_id="default"))
    assert {item["project"]["id"] for item in bound("GET", "tokens").json()["items"]} == {"default"}
    answers = [make(bound, project=name) for name in ("second", "none-such")]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.content for answer in answers}) == 1


def test_an_owner_learns_that_the_token_not_the_role_is_too_narrow() -> None:
    bound = Api(token(member("owner"), "run.read"))
    for method, path in (("GET", "projects/default/audit"), ("GET", "projects/default/tasks")):
        answer = bound(method, path).json()
        assert (answer["code"], answer["detail"]) == (
            "permission_denied",
            "The scopes of this token do not allow this.",
        )
    reader = api(member("viewer", "vera"))("GET", "projects/default/audit").json()
    assert (reader["code"], reader["detail"]) == ("permission_denied", "Your role does not allow this.")


def test_tokens_of_others_do_not_exist() -> None:
    token(member("owner"))
    other = ApiToken.objects.get()
    assert api(account("else"))("DELETE", f"tokens/{other.id}").status_code == 404


def test_disabling_stops_at_once() -> None:
    user = member("owner")
    caller, browser = api(user), Api(client=signed_in(user))
    assert caller("GET", "me").status_code == browser("GET", "me").status_code == 200
    set_subject_status(user.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    assert caller("GET", "me").status_code == browser("GET", "me").status_code == 401
    set_subject_status(user.subject_id, 2, "active", actor=ROOT, origin="tests")
    assert caller("GET", "me").status_code == browser("GET", "me").status_code == 200


def test_expiry_is_to_the_millisecond(time: Time) -> None:
    user = member("viewer")
    caller = Api(token(user, expires_at=clock.from_ms(time.ms + 1000)))
    time.advance(999)
    assert caller("GET", "me").status_code == 200
    time.advance(1)
    assert caller("GET", "me").status_code == 401


def test_use_is_noted_once_a_minute(time: Time) -> None:
    caller = api(member("viewer"))
    start = time.ms
    for after, noted in ((0, 0), (59_999, 0), (60_000, 60_000)):
        time.ms = start + after
        assert caller("GET", "me").status_code == 200
        last = ApiToken.objects.get().last_used_at
        assert last is not None and clock.to_ms(last) == start + noted


def test_an_empty_call_asks_twice_and_writes_nothing(time: Time) -> None:
    """Token with its subject and account, roles with their projects: the floor under every call of a script."""
    caller = api(member("viewer"))
    caller("GET", "me")
    time.advance(59_999)
    with CaptureQueriesContext(connection) as seen:
        assert caller("GET", "me").status_code == 200
    asked = [query["sql"] for query in seen]
    assert len(asked) == 2 and all(sql.startswith("SELECT") for sql in asked)


def test_subjects_without_an_account() -> None:
    app = other_subject("api_app")
    give(app, "operator")
    me = api(app)("GET", "me").json()
    assert (me["username"], me["is_administrator"], me["assurance"]) == (None, False, "service")
    assert api(app)("POST", "projects", {"name": "X", "slug": "x"}).status_code == 403


@pytest.mark.parametrize("scopes", [("project.read",), ("project.manage",), ("token.manage",)])
def test_instance_rights_need_their_scope(scopes: tuple[str, ...]) -> None:
    root = account("root", administrator=True)
    new = {"name": "X", "slug": "x"}
    assert Api(token(root, *scopes))("POST", "projects", new).status_code == 403
    assert Api(token(root, "instance.manage"))("POST", "projects", new).status_code == 201


def test_a_constant_number_of_queries() -> None:
    owner = member("owner")
    caller = api(owner)
    browser = Api(client=signed_in(owner))
    caller("GET", "me")
    counts = {}
    for round_ in range(2):
        for name, who in (("token", caller), ("session", browser)):
            with CaptureQueriesContext(connection) as queries:
                assert who("GET", "projects/default").status_code == 200
            counts[name, round_] = len(queries)
        for number in range(5):
            project(owner, f"p{round_}{number}")
            member("viewer", f"v{round_}{number}")
    # Token and subject, project, decision; a session adds its binding.
    assert counts == {("token", 0): 3, ("session", 0): 4, ("token", 1): 3, ("session", 1): 4}


def test_what_a_credential_covers() -> None:
    star = Credential("token", frozenset({"*"}))
    assert star.covers("run.start") and star.covers("tool.call:x") and star.covers("instance.manage")
    for scope in ("approval.decide", "approval.recover", "policy.manage", "secret.manage", "token.manage"):
        assert not star.covers(scope)
        assert Credential("token", frozenset({"*", scope})).covers(scope)
        assert Credential("session").covers(scope)
