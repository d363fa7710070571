"""Every page renders, in both languages, within the strict policy, without a write, in a fixed number of queries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.access.models import Application, User
from apps.access.services import create_application
from apps.identity.principals import PolicySubject
from apps.runs.models import Run
from apps.tasks.models import Task
from tests.approvals.kit import Cast, approved, filed, ready
from tests.panel.kit import a_run, a_task, browser
from tests.people import ROOT, give, member

pytestmark = pytest.mark.django_db
__all__ = ["ready"]

INLINE = re.compile(r"<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:|<script(?![^>]*\ssrc=)", re.IGNORECASE)
FOREIGN = re.compile(r"(?:src|href|action)=\"(?:https?:)?//", re.IGNORECASE)


@pytest.fixture
def owner() -> User:
    return member("owner", "ann", administrator=True)


@pytest.fixture
def things(owner: User) -> tuple[Task, Run]:
    task = a_task(owner, env={"A": "1\n2", "B": '"$x"'}, labels=["nightly"], description="one\ntwo")
    run = a_run(owner, task)
    a_task(
        owner,
        "脚本",
        shell=None,
        script={"language": "node", "source": "1", "args": ["a"]},
        timeout_ms=1500,
    )
    a_task(owner, "Marked", slug="marked", requires_approval=True)
    made = create_application("agent", "release-bot", actor=ROOT, origin="tests")
    bot = PolicySubject("agent", made.subject_id)
    give(bot, "operator")
    filed(bot, task, input={"tag": "v2"}, args=["now"])
    approved(Cast(bot, member("admin", "ursula"), owner), "r-2")
    return task, run


def addresses(task: Task, run: Run) -> Iterator[str]:
    yield from ("/panel/", "/panel/projects/", "/panel/tokens/", "/panel/workers/", "/panel/people/")
    yield from ("/panel/go/", "/panel/go/?q=back", "/panel/keys/", "/panel/security/", "/panel/applications/")
    yield f"/panel/people/{User.objects.get(username='ann').subject_id}/"
    yield from (f"/panel/applications/{one.pk}/" for one in Application.objects.all())
    yield from (
        f"/panel/p/default/{page}/" for page in ("tasks", "tasks/new", "runs", "skips", "audit", "secrets")
    )
    yield from ("/panel/p/default/", "/panel/p/default/?history=1", "/panel/p/default/archive/")
    yield from ("/panel/p/default/tasks/?search=x", "/panel/p/default/runs/?status=queued&trigger=manual")
    yield f"/panel/p/default/runs/?task={task.slug}"
    for part in (
        "",
        "script/",
        "revisions/",
        "revisions/1/",
        "revisions/compare/?a=1&b=1",
        "why/",
        "triggers/",
        "triggers/new/",
        "settings/",
        "edit/",
        "archive/",
        "run-with/",
    ):
        yield f"/panel/p/default/task/{task.slug}/{part}"
    yield from ("/panel/p/default/approval-rules/", "/panel/p/default/task/marked/run-with/")
    yield "/panel/p/default/task/marked/"
    yield from (f"/panel/approvals/{request}/" for request in ("r-1", "r-2"))
    yield from (
        f"/panel/p/default/approvals/?tab={tab}"
        for tab in ("waiting", "done", "rejected", "own", "all", "recovery")
    )
    yield from (f"/panel/runs/{run.pk}/", f"/panel/runs/{run.pk}/stop/")


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_every_page_renders_within_the_policy(owner: User, things: Any, language: str) -> None:
    client = browser(owner, language=language)
    client.get("/panel/")  # whoever comes first has the installation checked, for all who come within seconds
    for address in addresses(*things):
        with CaptureQueriesContext(connection) as queries:
            answer = client.get(address)
        assert answer.status_code == 200, address
        html = answer.content.decode()
        assert not INLINE.search(html), (address, INLINE.search(html))
        assert not FOREIGN.search(html), (address, FOREIGN.search(html))
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert html.count("<h1>") == 1, address
        assert f'lang="{language}"' in html
        writes = [
            query["sql"] for query in queries if not query["sql"].lstrip(" (").upper().startswith("SELECT")
        ]
        assert not writes, (address, writes)
        assert len(queries) <= 30, (address, len(queries), [query["sql"][:120] for query in queries])
