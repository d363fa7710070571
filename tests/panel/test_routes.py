"""A walk over every address of the panel: each declares what it needs and refuses whoever lacks it."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern

from apps.panel.page import ADMINISTRATOR, SIGNED_IN, Page
from apps.panel.routes import pages
from apps.panel.views.dashboard import Dashboard
from apps.projects import permissions
from tests.panel.kit import a_run, a_task, browser
from tests.people import account, member, project

pytestmark = pytest.mark.django_db

ROUTES = [(str(route.pattern), route.callback.view_class) for route in pages if isinstance(route, URLPattern)]
METHODS = ("GET", "POST")


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
            assert "<str:p>" in pattern or "<uuid:run>" in pattern


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
    values = {"p": "default", "t": task.slug, "revision": "1", "run": str(run.pk)}
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
