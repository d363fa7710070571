"""Every API route declares what it needs, and refuses whoever lacks it; new routes are in by being mounted."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.generators import SchemaGenerator

from apps.access.endpoints import ADMINISTRATOR, SIGNED_IN, TOKEN_MANAGE, Endpoint, ProjectEndpoint
from apps.access.models import ApiToken, User
from apps.access.services import create_application, invite
from apps.artifacts.facts import artifact_id
from apps.core import clock
from apps.identity.services import set_subject_status
from apps.projects import permissions
from apps.projects.services import set_project_status
from apps.runs.services import Started, start_run
from apps.tasks.services import TaskDraft, create_task
from apps.triggers.drafts import TriggerDraft
from apps.triggers.services import create_trigger
from tests.approvals import kit as approvals
from tests.artifacts.kit import leave, write
from tests.people import (
    ROOT,
    Api,
    account,
    api,
    give,
    grant,
    member,
    other_subject,
    project,
    signed_in,
    subject,
    token,
)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
NO_UUID = str(uuid.UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0001))
# What a route cannot do without in its address.
WANTED = {"runs/<str:id>/log/search": "?q=x"}
NOTHING = {"uuid": NO_UUID, "int": "1", "str": "none-such"}


@dataclass(frozen=True)
class Route:
    path: str
    view: type[Any]
    where: str

    def url(self, rows: Mapping[str, str] | None = None, p: str = "default") -> str:
        """The path with `rows` filled in (by `collection/name`, then by name), and nothing real without."""

        def value(found: re.Match[str]) -> str:
            kind, name = found[1] or "str", found[2]
            collection = self.path[: found.start()].strip("/").rpartition("/")[2]
            real = {"p": p, **(rows or {})}
            return real.get(f"{collection}/{name}") or real.get(name) or NOTHING[kind]

        return re.sub(r"<(?:(\w+):)?(\w+)>", value, self.path)

    def methods(self) -> list[str]:
        return [name for name in METHODS if hasattr(self.view, name.lower().replace("head", "get"))]

    def needs(self, method: str) -> str:
        return str(self.view.permissions.get("GET" if method == "HEAD" else method, ""))


def walk(patterns: list[Any], prefix: str = "") -> Iterator[Route]:
    for pattern in patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns, path)
        elif isinstance(pattern, URLPattern) and path.startswith("api/v3/"):
            callback = pattern.callback
            view = getattr(callback, "cls", getattr(callback, "view_class", callback))
            yield Route(path.removeprefix("api/v3/"), view, pattern.lookup_str)


ROUTES = list(walk(get_resolver().url_patterns))
CALLS = [(route, method) for route in ROUTES for method in route.methods()] if ROUTES else []
IN_PROJECT = [(route, method) for route, method in CALLS if issubclass(route.view, ProjectEndpoint)]


@pytest.fixture
def rows(tmp_path: Path, settings: Any) -> dict[str, str]:
    """One thing of each kind in the default project, so that refusals are tried on what exists.

    A new kind of row adds a line.
    """
    settings.LOG_ROOT = tmp_path / "logs"
    host = member("owner", "host")
    task = create_task(grant(host, "task.create"), TaskDraft(name="Task", slug="task", command=["true"]))
    started = start_run(grant(host, "run.start"), task.pk, trigger_type="manual")
    assert isinstance(started, Started)
    draft = TriggerDraft(kind="webhook")
    made = create_trigger(grant(host, "task.update"), grant(host, "run.start"), task.pk, draft)
    attempt = started.run.attempts.get()
    attempt.log_artifact_id = artifact_id(str(started.run.pk), str(attempt.pk))
    attempt.save()
    write(attempt, b"x")
    [artifact] = leave(attempt, ("a", b"a", "text/plain"))
    return {
        "t": task.slug,
        "revision": task.revision.task_revision,
        "runs/id": str(started.run.pk),
        "artifact": str(artifact.pk),
        "triggers/id": str(made.trigger.pk),
        "people/id": host.subject_id,
        "invitations/id": str(_invitation(host)),
        "applications/id": create_application("agent", "Bot", actor=ROOT, origin="tests").pk,
        "approvals/id": handed_over(host),
    }


def handed_over(decider: User) -> str:
    """The id of a request that was approved and consumed, so that all there can be of one is there."""
    bot = other_subject("agent")
    give(bot, "operator")
    approvals.requested(bot)
    approvals.services.consume(approvals.consumption(approvals.decide(decider)))
    return "r-1"


def _invitation(host: User) -> UUID:
    given = grant(host, "policy.manage")
    return invite(subject(host), grant=given, role="viewer", origin="tests").invitation.pk


def name(value: object) -> str:
    return value.path if isinstance(value, Route) else str(value)


every_call = pytest.mark.parametrize(("route", "method"), CALLS, ids=name)
every_project_call = pytest.mark.parametrize(("route", "method"), IN_PROJECT, ids=name)


def body(method: str) -> dict[str, Any] | None:
    return None if method in ("GET", "HEAD") else {}


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_every_view_is_an_endpoint_that_declares_what_it_needs(route: Route) -> None:
    assert isinstance(route.view, type) and issubclass(route.view, Endpoint), route.where
    own = {
        method.upper() for method in ("get", "post", "put", "patch", "delete") if hasattr(route.view, method)
    }
    assert own == set(route.view.permissions), "each method is declared, and nothing else is"
    for needed in route.view.permissions.values():
        assert needed in (SIGNED_IN, ADMINISTRATOR, TOKEN_MANAGE) or permissions.find(needed)
    if "<str:p>" in route.path:
        assert issubclass(route.view, ProjectEndpoint)


@every_call
@pytest.mark.django_db
def test_nobody_gets_in(route: Route, method: str) -> None:
    stale = token(member("owner"), expires_at=clock.from_ms(clock.now_ms() + 60_000))
    then = clock.now_ms() + 60_000
    with clock.fixed(lambda: then):
        for caller in (Api(), Api("ql3t_" + "x" * 43), Api("nonsense"), Api(stale)):
            answer = caller(method, route.url(), body(method))
            assert answer.status_code == 401
            assert answer["WWW-Authenticate"] == "Bearer"
            assert answer["Content-Type"] == "application/problem+json"


@every_call
@pytest.mark.django_db
def test_a_revoked_token_gets_nowhere(route: Route, method: str) -> None:
    caller = api(member("owner"))
    ApiToken.objects.update(revoked_at=clock.now())
    assert caller(method, route.url(), body(method)).status_code == 401


@every_call
@pytest.mark.django_db
def test_whoever_is_disabled_gets_nowhere(route: Route, method: str, rows: dict[str, str]) -> None:
    owner = member("owner", administrator=True)
    callers = (api(owner), Api(client=signed_in(owner)))
    set_subject_status(owner.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    for caller in callers:
        answer = caller(method, route.url(rows), body(method))
        assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


@every_project_call
@pytest.mark.django_db
def test_an_archived_project_is_only_read(route: Route, method: str, rows: dict[str, str]) -> None:
    """But for what its view names: who may restore it, revoke in it, read its trail. A viewer learns no more."""
    owner, viewer = member("owner"), member("viewer")
    set_project_status(grant(owner, "project.manage"), 1, "archived")
    needed = permissions.PERMISSIONS[route.needs(method)]
    query = WANTED.get(route.path, "") if method in ("GET", "HEAD") else ""
    answer = api(owner)(method, route.url(rows) + query, body(method))
    if method in ("GET", "HEAD") and (needed.read or method in route.view.while_archived):
        assert answer.status_code < 300
    elif needed.read or method in route.view.while_archived:
        assert answer.json()["code"] != "project_archived" if answer.status_code >= 400 else True
    else:
        assert answer.status_code == (404 if route.view.mask else 409)
    if "viewer" not in needed.roles:
        assert api(viewer)(method, route.url(rows), body(method)).status_code in (403, 404, 409)


@every_call
@pytest.mark.django_db
def test_a_viewer_reads_and_nothing_else(route: Route, method: str, rows: dict[str, str]) -> None:
    answer = api(member("viewer"))(method, route.url(rows), body(method))
    needed = route.needs(method)
    if needed == ADMINISTRATOR:
        assert answer.status_code == 403
    elif needed in permissions.PERMISSIONS and "viewer" not in permissions.PERMISSIONS[needed].roles:
        assert answer.status_code == (404 if getattr(route.view, "mask", False) else 403)
    assert answer.status_code < 500


@every_call
@pytest.mark.django_db
def test_a_read_only_token_of_an_owner_only_reads(route: Route, method: str, rows: dict[str, str]) -> None:
    reads = [right.name for right in permissions.PERMISSIONS.values() if right.read]
    answer = api(member("owner", administrator=True), *reads)(method, route.url(rows), body(method))
    if route.needs(method) not in (*reads, SIGNED_IN):
        assert answer.status_code == (404 if getattr(route.view, "mask", False) else 403)


@every_call
@pytest.mark.django_db
def test_a_star_token_leaves_out_what_must_be_named(route: Route, method: str) -> None:
    needed = route.needs(method)
    answer = api(member("owner", administrator=True), "*")(method, route.url(), body(method))
    named = (TOKEN_MANAGE, "policy.manage", "secret.manage")
    if needed in named or needed.startswith("approval."):
        assert answer.status_code in (403, 404)


@every_project_call
@pytest.mark.django_db
def test_another_projects_owner_cannot_tell_it_from_nothing(
    route: Route, method: str, rows: dict[str, str]
) -> None:
    stranger = account("stranger", administrator=True)
    other = project(stranger)
    answers = [
        caller(method, url, body(method))
        for caller in (api(stranger), Api(token(stranger, project_id=other)))
        for url in (route.url(rows), route.url(), route.url(p="none-such"))
    ]
    for answer in answers:
        assert answer.status_code == 404
        assert answer.content == answers[0].content
        assert sorted(answer.items()) == sorted(answers[0].items())


@every_project_call
@pytest.mark.django_db
def test_the_rows_exist_for_those_who_may(route: Route, method: str, rows: dict[str, str]) -> None:
    if method == "GET":
        answer = api(member("owner"))(method, route.url(rows) + WANTED.get(route.path, ""), None)
        assert answer.status_code < 300


@every_project_call
@pytest.mark.django_db
def test_a_token_of_one_project_is_nobody_in_another(route: Route, method: str, rows: dict[str, str]) -> None:
    owner = member("owner")
    other = project(owner)
    answer = Api(token(owner, project_id=other))(method, route.url(rows), body(method))
    assert answer.status_code == 404


@every_call
@pytest.mark.django_db
def test_a_method_nobody_wrote_is_refused(route: Route, method: str) -> None:
    caller = api(member("owner", administrator=True))
    missing = next((verb for verb in ("TRACE", "PUT", "DELETE") if verb not in route.methods()), "TRACE")
    answer = caller(missing, route.url(), None)
    assert answer.status_code == 405
    assert answer.json()["code"] == "method_not_allowed"


def test_routes_exist() -> None:
    assert {"me", "tokens", "projects/<str:p>/audit"} <= {route.path for route in ROUTES}


@pytest.mark.django_db
def test_a_list_takes_the_parameters_it_declares_and_no_others(rows: dict[str, str]) -> None:
    """An unknown field is an error, in an address too: a filter that is misspelt must not show everything."""
    caller = api(member("owner", administrator=True), "*", TOKEN_MANAGE, *permissions.PERMISSIONS)
    declared = SchemaGenerator().get_schema(public=True)["paths"]
    listed = 0
    for route in ROUTES:
        operation = declared.get("/api/v3/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route.path), {}).get(
            "get", {}
        )
        names = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
        if "limit" not in names or "offset" in names:
            continue
        listed += 1
        known = caller("GET", f"{route.url(rows)}?{'&'.join(f'{name}=' for name in names)}")
        assert "no such parameter" not in known.content.decode(), (route.path, known.json())
        unknown = caller("GET", f"{route.url(rows)}?nonsense=1")
        assert (unknown.status_code, list(unknown.json()["errors"])) == (400, ["nonsense"]), route.path
    assert listed >= 10
