"""A walk over every address of the panel: each declares what it needs and refuses whoever lacks it."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern

from apps.identity.principals import PolicySubject
from apps.identity.services import set_subject_status
from apps.panel.page import ADMINISTRATOR, SIGNED_IN, Page
from apps.panel.routes import pages
from apps.panel.views.dashboard import Dashboard
from apps.projects import permissions
from apps.projects.models import Project
from apps.projects.services import set_project_status
from apps.tasks.models import Task
from tests.approvals.kit import requested
from tests.panel.kit import a_run, a_task, browser
from tests.people import ROOT, account, give, grant, member, other_subject, project

pytestmark = pytest.mark.django_db

ROUTES = [(str(route.pattern), route.callback.view_class) for route in pages if isinstance(route, URLPattern)]
METHODS = ("GET", "POST")
# What can be done in an archived project.
STILL = frozenset(
    {
        "p/<str:p>/restore/",
        "p/<str:p>/roles/",
        "p/<str:p>/audit/",
        "p/<str:p>/audit/check/",
        "p/<str:p>/invitations/",
        "p/<str:p>/invitations/<uuid:invitation>/revoke/",
    }
)


def agent() -> PolicySubject:
    found = other_subject("agent")
    give(found, "operator")
    return found


def address(pattern: str, **values: str) -> str:
    def value(found: re.Match[str]) -> str:
        return values.get(found[2], "1" if found[1] == "int" else str(uuid.UUID(int=1)))

    return "/panel/" + re.sub(r"<(\w+):(\w+)>", value, pattern)


def call(client: Client, method: str, url: str) -> Any:
    return client.generic(method, url)


@pytest.mark.parametrize(("pattern", "view"), ROUTES)
def test_each_page_declares_what_it_needs(pattern: str, view: type[Page]) -> None:
    assert issubclass(view, Page) and view.permissions
    for method, needed in view.permissions.items():
        assert method in METHODS and hasattr(view, method.lower())
        if needed not in (SIGNED_IN, ADMINISTRATOR):
            assert permissions.find(needed)
            assert any(one in pattern for one in ("<str:p>", "<uuid:run>", "<str:approval>"))


@pytest.mark.parametrize(("pattern", "view"), ROUTES)
def test_nobody_gets_in_without_signing_in(pattern: str, view: type[Page]) -> None:
    for method in METHODS:
        answer = call(Client(), method, address(pattern, p="default"))
        assert answer.status_code == 302 and answer.headers["Location"].startswith("/panel/login/")


def test_who_lacks_the_role_or_the_project_is_refused_everywhere() -> None:
    owner = member("owner", "ann")
    task = a_task(owner)
    run = a_run(owner, task)
    other = account("olga")
    project(other, "hers")
    stranger, viewer = browser(other), browser(member("viewer", "vic"))
    values = {"p": "default", "t": task.slug, "revision": "1", "run": str(run.pk), "approval": "r-1"}
    requested(agent())
    for pattern, view in ROUTES:
        for method in METHODS:
            needed = view.permissions.get(method, "")
            url = address(pattern, **values)
            if needed == ADMINISTRATOR:
                assert call(stranger, method, url).status_code == 403, url
            elif needed != SIGNED_IN:
                assert call(stranger, method, url).status_code == 404, url
                if needed and "viewer" not in permissions.find(needed).roles:
                    assert call(viewer, method, url).status_code == 403, (method, url)


def test_whoever_was_disabled_is_at_the_door_again() -> None:
    owner = member("owner", "ann", administrator=True)
    task = a_task(owner)
    values = {"p": "default", "t": task.slug, "revision": "1", "run": str(a_run(owner, task).pk)}
    client = browser(owner)
    set_subject_status(owner.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    for pattern, _view in ROUTES:
        for method in METHODS:
            answer = call(client, method, address(pattern, **values))
            assert answer.status_code == 302, pattern
            assert answer.headers["Location"].startswith("/panel/login/"), pattern


def test_an_archived_project_is_only_looked_at() -> None:
    """No page changes it or offers a change but restoring, what takes rights away, and what checks its trail."""
    owner = member("owner", "ann")
    task = a_task(owner)
    values = {"p": "default", "t": task.slug, "revision": "1", "run": str(a_run(owner, task).pk)}
    client = browser(owner)
    requested(agent())
    values["approval"] = "r-1"
    set_project_status(grant(owner, "project.manage"), 1, "archived")
    before = Project.objects.values().get(pk="default"), Task.objects.values().get(pk=task.pk)
    for pattern, view in ROUTES:
        for method in METHODS:
            needed = view.permissions.get(method, "")
            if needed in ("", SIGNED_IN, ADMINISTRATOR) or permissions.find(needed).read or pattern in STILL:
                continue
            answer = call(client, method, address(pattern, **values))
            assert answer.status_code in (404, 409), (method, pattern, answer.status_code)
            if answer.status_code == 409:
                assert "project_archived" in answer.content.decode(), pattern
    assert (Project.objects.values().get(pk="default"), Task.objects.values().get(pk=task.pk)) == before
    assert call(client, "GET", "/panel/p/default/").status_code == 200


def test_a_fault_of_ours_has_a_page_that_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = browser(member("owner", "ann"))
    client.raise_request_exception = False

    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Dashboard, "get", fails)
    answer = client.get("/panel/")
    html = answer.content.decode()
    assert answer.status_code == 500 and "internal_error" in html and "secret detail" not in html
    assert "Content-Security-Policy" in answer.headers


def test_addresses_that_lead_nowhere_have_a_page() -> None:
    answer = Client().get("/panel/none-such/")
    assert answer.status_code == 404 and "not_found" in answer.content.decode()
    assert Client().get("/").headers["Location"] == "/panel/"
    assert Client().get("/panel").headers["Location"] == "/panel/"
