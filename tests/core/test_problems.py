"""Refusals of the API: one shape, nothing in it that should not be."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, OperationalError
from django.test import Client

from apps.core import problems
from apps.core.errors import Busy, DomainError, InvalidInput, NotFound, Unauthenticated, VersionConflict
from apps.projects import queries
from tests.people import Api, api, member

pytestmark = pytest.mark.django_db


def shape(answer: Any, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert answer.status_code == status == body["status"]
    assert body["code"] == code
    assert answer["Content-Type"] == "application/problem+json"
    assert body["type"] == f"urn:qinglong:problem:{code}"
    assert isinstance(body["title"], str) and isinstance(body["detail"], str)
    return body


def test_unknown_routes_look_like_unknown_ids() -> None:
    caller = api(member("owner"))
    ids = caller("GET", "projects/none-such")
    route = caller("GET", "no/such/route")
    shape(ids, 404, "not_found")
    assert route.content == ids.content and route["Content-Type"] == ids["Content-Type"]
    assert Client().get("/api/").status_code == 404
    assert Client().get("/api/").json()["code"] == "not_found"
    assert Client().get("/else")["Content-Type"].startswith("text/html")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"name": "\\ud800"}',
        b'{"name": "\\u0000"}',
    ],
)
def test_bodies_that_are_not_json(body: bytes) -> None:
    caller = api(member("owner", administrator=True))
    answer = caller.client.post(
        "/api/v3/projects", data=body, content_type="application/json", headers=caller.headers
    )
    shape(answer, 400, "invalid_json")


def test_too_large_other_types_and_other_shapes() -> None:
    caller = api(member("owner", administrator=True))
    large = b'"' + b"x" * (4 * 1024 * 1024) + b'"'
    send = caller.client.post
    answer = send("/api/v3/projects", data=large, content_type="application/json", headers=caller.headers)
    shape(answer, 413, "too_large")
    shape(send("/api/v3/projects", data={"name": "x"}, headers=caller.headers), 415, "unsupported_media_type")
    shape(caller("GET", "projects", Accept="image/png"), 406, "not_acceptable")
    assert shape(caller("POST", "projects", []), 400, "invalid")["errors"]["_"]
    errors = shape(caller("POST", "projects", {"slug": 5, "x": 1}), 400, "invalid")["errors"]
    assert set(errors) == {"x"}
    assert shape(caller("PUT", "projects", {}), 405, "method_not_allowed")
    assert set(caller("PUT", "projects", {})["Allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "POST"}


def test_a_body_without_a_length_is_not_an_empty_one() -> None:
    caller = api(member("owner", administrator=True))
    answer = caller.client.generic(
        "POST",
        "/api/v3/projects",
        headers={**caller.headers, "Transfer-Encoding": "chunked", "Content-Type": "application/json"},
    )
    shape(answer, 411, "length_required")


@pytest.mark.parametrize("body", ["a=1", "&".join(f"a{number}=1" for number in range(2_000))])
@pytest.mark.parametrize("path", ["/panel/login/", "/panel/", "/else"])
def test_a_form_that_cannot_be_read_is_an_answer_all_the_same(path: str, body: str) -> None:
    """The page that says so must not read it once more."""
    kind = "application/x-www-form-urlencoded" + ("; charset=latin-1" if body == "a=1" else "")
    client = Client(enforce_csrf_checks=True)
    client.get("/panel/login/")  # whoever has no cookie is refused before anybody reads the form
    answer = client.post(path, body, content_type=kind)
    assert answer.status_code == (404 if path == "/else" else 400)
    assert "script-src" in answer["Content-Security-Policy"]


def test_nul_in_paths_and_queries() -> None:
    caller = api(member("owner"))
    shape(caller("GET", "projects/a%00b"), 404, "not_found")
    shape(caller("GET", "projects/default/tasks/a%00b"), 404, "not_found")
    shape(caller("GET", "projects/default/audit?action=a%00b"), 400, "invalid")
    assert caller("GET", "projects/default/audit?action=%ff%ed%a0%80").status_code == 200


def test_head_and_options() -> None:
    caller = api(member("viewer"))
    head = caller("HEAD", "projects/default")
    assert (head.status_code, head.content, head["ETag"]) == (200, b"", '"1"')
    options = caller("OPTIONS", "projects/default")
    assert (options.status_code, options.content) == (204, b"")
    assert "PATCH" in options["Allow"]
    assert Api()("OPTIONS", "projects/default").status_code == 401


def test_no_answer_is_kept_in_between() -> None:
    caller = api(member("viewer"))
    assert "no-store" in caller("GET", "me")["Cache-Control"]
    assert "no-store" in Api()("GET", "me")["Cache-Control"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OperationalError("database is locked"), 503, "busy"),
        (OperationalError("no connection"), 503, "unavailable"),
        (IntegrityError("UNIQUE constraint failed: t.secret"), 503, "busy"),
        (Busy(), 503, "busy"),
        (VersionConflict(7), 409, "version_conflict"),
    ],
)
def test_database_errors(error: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = api(member("owner"))

    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(queries, "page_projects", fail)
    answer = caller("GET", "projects")
    body = shape(answer, status, code)
    assert ("Retry-After" in answer) == (status == 503)
    assert "secret" not in answer.content.decode()
    assert body.get("current_version") == (7 if status == 409 else None)


def test_what_nobody_foresaw_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = api(member("owner"))
    caller.client.raise_request_exception = False

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("the secret")

    monkeypatch.setattr(queries, "page_projects", fail)
    answer = caller("GET", "projects")
    shape(answer, 500, "error")
    assert b"secret" not in answer.content


def test_named_errors() -> None:
    wait = problems.of(Unauthenticated(retry_after=9))
    assert wait["WWW-Authenticate"] == "Bearer"
    limited = type("Limited", (DomainError,), {"status": 429, "code": "limited"})
    assert problems.of(limited(retry_after=9))["Retry-After"] == "9"
    fields = problems.of(InvalidInput.field("name", "Too long."))
    assert b'"errors": {"name": ["Too long."]}' in fields.content
    assert problems.of(NotFound()).content == problems.of(NotFound()).content
