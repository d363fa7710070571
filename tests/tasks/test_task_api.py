from __future__ import annotations

from typing import Any

import pytest

from apps.runs.models import Run
from tests.people import Api, account, api, member
from tests.tasks.kit import change, make

pytestmark = pytest.mark.django_db
URL = "projects/default/tasks"


@pytest.fixture
def owner() -> Api:
    return api(member("owner"))


def test_make_show_and_list(owner: Api) -> None:
    made = owner("POST", URL, {"name": "Back up", "shell": "echo hi", "env": {"A": ' "x"\n'}})
    assert (made.status_code, made["ETag"]) == (201, '"1"')
    body = made.json()
    assert (body["slug"], body["shell"], body["env"], body["version"]) == (
        "back-up",
        "echo hi",
        {"A": ' "x"\n'},
        1,
    )
    for reference in ("back-up", body["id"]):
        shown = owner("GET", f"{URL}/{reference}")
        assert (shown.status_code, shown["ETag"], shown.json()) == (200, '"1"', body)
    assert owner("GET", URL).json() == {"items": [body], "next_cursor": None}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["name"]),
        ({"name": "a"}, ["command"]),
        ({"name": "a", "shell": "b", "colour": 1}, ["colour"]),
        ({"name": "a", "shell": "b", "timeout_ms": 1, "priority": "x"}, ["priority", "timeout_ms"]),
        ({"name": "a", "command": ["b"], "shell": "c"}, ["command"]),
    ],
)
def test_refusals_name_the_fields(owner: Api, body: Any, fields: list[str]) -> None:
    answer = owner("POST", URL, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert answer["Content-Type"] == "application/problem+json"
    assert sorted(answer.json()["errors"]) == fields


def test_what_is_no_object(owner: Api) -> None:
    make(slug="one")
    for body in ([], "x", 1, None):
        assert owner("POST", URL, body if body is not None else "null").status_code == 400
        patched = owner("PATCH", f"{URL}/one", body if body is not None else "null", If_Match='"1"')
        assert patched.status_code == 400


def test_d15_what_no_process_can_get_is_refused_by_name(owner: Api) -> None:
    answer = owner("POST", URL, {"name": "a", "shell": "true", "env": {"A": "x\0y"}})
    assert answer.status_code == 400
    assert "NUL" in answer.json()["errors"]["env"][0]
    answer = owner("POST", URL, b'{"name": "a", "shell": "\\ud800"}')
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["shell"])
    make(slug="one")
    for method, url in (("POST", URL), ("PATCH", f"{URL}/one")):
        answer = owner(method, url, b'{"name": "a", "\\ud800": 1, "\\u0000": 1}', If_Match='"1"')
        assert (answer.status_code, list(answer.json()["errors"])) == (400, ["_"])


def test_change(owner: Api) -> None:
    task = make(slug="one")
    current = owner("GET", f"{URL}/one").json()
    answer = owner("PATCH", f"{URL}/one", {**current, "command": ["ls"], "timeout_ms": 5_000}, If_Match='"1"')
    assert answer.status_code == 400  # both bodies were sent
    answer = owner("PATCH", f"{URL}/one", {"id": current["id"], "command": ["ls"]}, If_Match='"1"')
    assert (answer.status_code, answer["ETag"], answer.json()["revision"]) == (200, '"2"', "2")
    assert answer.json()["shell"] is None
    missing = owner("PATCH", f"{URL}/one", {"name": "b"})
    assert missing.status_code == 428
    stale = owner("PATCH", f"{URL}/{task.pk}", {"name": "b"}, If_Match='"1"')
    assert (stale.status_code, stale.json()["code"], stale.json()["current_version"]) == (
        409,
        "version_conflict",
        2,
    )
    wrong = owner("PATCH", f"{URL}/one", {"version": 7}, If_Match='"2"')
    assert (wrong.status_code, list(wrong.json()["errors"])) == (400, ["version"])


def test_disable_in_a_change_and_empty_the_queue(owner: Api) -> None:
    task = make(slug="one")
    assert owner("POST", f"{URL}/one/runs", {}, Idempotency_Key="k").status_code == 201
    answer = owner("PATCH", f"{URL}/one", {"enabled": False, "name": "Off"}, If_Match='"1"')
    assert (answer.status_code, answer.json()["enabled"], answer.json()["name"]) == (200, False, "Off")
    assert answer["ETag"] == f'"{answer.json()["version"]}"'
    assert Run.objects.get(task=task).status == "cancelled"
    again = owner("PATCH", f"{URL}/one", {"enabled": None}, If_Match=answer["ETag"])
    assert again.json()["enabled"] is True
    assert owner("PATCH", f"{URL}/one", {"enabled": 1}, If_Match=again["ETag"]).status_code == 400


def test_archive(owner: Api) -> None:
    task = make(slug="one")
    assert owner("DELETE", f"{URL}/one").status_code == 428
    assert owner("DELETE", f"{URL}/one", If_Match='"7"').status_code == 409
    gone = owner("DELETE", f"{URL}/one", If_Match='"1"')
    assert (gone.status_code, gone.content) == (204, b"")
    assert owner("GET", f"{URL}/one").status_code == 404
    kept = owner("GET", f"{URL}/{task.pk}").json()
    assert kept["archived_at"] is not None
    assert owner("GET", URL).json()["items"] == []
    assert owner("GET", f"{URL}?archived=true").json()["items"] == [kept]
    refused = owner("PATCH", f"{URL}/{task.pk}", {"name": "x"}, If_Match=f'"{kept["version"]}"')
    assert (refused.status_code, refused.json()["code"]) == (409, "task_archived")
    assert owner("POST", URL, {"name": "again", "slug": "one", "shell": "a"}).status_code == 201


def test_slug_conflict(owner: Api) -> None:
    make(slug="one")
    answer = owner("POST", URL, {"name": "b", "slug": "one", "shell": "a"})
    assert (answer.status_code, answer.json()["code"]) == (409, "slug_taken")


def test_revisions(owner: Api) -> None:
    task = change(make(slug="one", shell="a"), shell="b")
    listed = owner("GET", f"{URL}/one/revisions?limit=1").json()
    assert [item["revision"] for item in listed["items"]] == ["2"]
    rest = owner("GET", f"{URL}/one/revisions?limit=1&cursor={listed['next_cursor']}").json()
    assert [item["shell"] for item in rest["items"]] == ["a"]
    one = owner("GET", f"{URL}/one/revisions/1").json()
    assert one == rest["items"][0]
    assert one["task"] == {"id": str(task.pk), "slug": "one"}
    assert owner("GET", f"{URL}/one/revisions/9").status_code == 404


def test_filters_and_their_mistakes(owner: Api) -> None:
    make(name="One", labels=["a"])
    make(name="Two", enabled=False)
    assert [item["name"] for item in owner("GET", f"{URL}?label=a").json()["items"]] == ["One"]
    assert [item["name"] for item in owner("GET", f"{URL}?enabled=false").json()["items"]] == ["Two"]
    assert [item["name"] for item in owner("GET", f"{URL}?search=tw").json()["items"]] == ["Two"]
    for query in ("enabled=1", "archived=x", "limit=0", "limit=201", "cursor=x", "search=%00", "label=%01"):
        assert owner("GET", f"{URL}?{query}").status_code == 400


def test_roles(owner: Api) -> None:
    make(slug="one")
    viewer, operator = api(member("viewer")), api(member("operator"))
    assert viewer("GET", f"{URL}/one").status_code == 200
    assert viewer("POST", URL, {"name": "a", "shell": "b"}).status_code == 403
    assert viewer("PATCH", f"{URL}/one", {"name": "a"}, If_Match='"1"').status_code == 403
    assert operator("PATCH", f"{URL}/one", {"name": "a"}, If_Match='"1"').status_code == 200
    assert operator("DELETE", f"{URL}/one", If_Match='"2"').status_code == 403
    stranger = api(account("eve"))
    answers = [stranger("GET", f"projects/{name}/tasks/one") for name in ("default", "none")]
    assert {answer.status_code for answer in answers} == {404}
    assert answers[0].content == answers[1].content
