"""The dashboard: figures, lists and charts from totals, in a fixed number of queries, without walking runs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.core import clock, health, ids
from apps.dispatch.models import Node, Worker
from apps.identity.models import IdentitySubject
from apps.panel import overview
from apps.projects.models import Project
from apps.runs.models import Run, UncountedRun
from apps.runs.services import fold_totals
from apps.tasks.models import Task
from apps.triggers.drafts import TriggerDraft
from apps.triggers.services import create_trigger
from tests.panel.kit import a_run, a_task, browser
from tests.people import grant, member, project

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh() -> None:
    health.forget()


@pytest.fixture
def owner() -> User:
    return member("owner", "ann", administrator=True)


@pytest.fixture
def client(owner: User) -> Client:
    return browser(owner)


@pytest.fixture
def task(owner: User) -> Task:
    return a_task(owner, concurrency="parallel", max_parallel=100)


def ended(
    owner: User, task: Task, status: str = "succeeded", took_ms: int = 1000, hours_ago: float = 0
) -> Run:
    """A run as if it had ended so long ago, counted like every other."""
    run = a_run(owner, task)
    end = clock.now() - timedelta(hours=hours_ago)
    begun = end - timedelta(milliseconds=took_ms)
    Run.objects.filter(pk=run.pk).update(
        status=status, created_at=begun, started_at=begun, finished_at=end, holds_place=False
    )
    UncountedRun.objects.create(
        run_id=run.pk, project_id=task.project_id, task_id=task.pk, status=status, finished_at=end,
        duration_ms=took_ms,
    )  # fmt: skip
    fold_totals()
    return run


def going(owner: User, task: Task, status: str = "running") -> Run:
    run = a_run(owner, task)
    Run.objects.filter(pk=run.pk).update(status=status, started_at=clock.now() - timedelta(seconds=5))
    return run


def figure(html: str, word: str) -> str:
    found = re.search(
        rf'class="ql-figure[^>]*>(?:(?!</a>).)*{word}(?:(?!</a>).)*<strong>(.*?)</strong>', html, re.S
    )
    assert found, word
    return found[1]


def test_figures_lists_and_bars(owner: User, client: Client, task: Task) -> None:
    ended(owner, task, took_ms=20_000)
    for _ in range(3):
        bad = ended(owner, task, "failed", 400)
    other = a_task(owner, "Feed")
    ended(owner, other, "timed_out", 900, hours_ago=30)
    run, waits = going(owner, task), a_run(owner, other)
    a_run(owner, other)
    html = client.get("/panel/").content.decode()
    assert figure(html, "Running") == "1" and figure(html, "Queued") == "2"
    assert figure(html, "Failed") == "3" and "of 4 runs in 24 h" in html
    assert "of usually 20 s" in html and f"/panel/runs/{run.pk}/" in html
    lately = html[html.index("Failed lately") : html.index("Next due")]
    assert "×3" in lately and str(bad.pk) in lately and "Feed" not in lately
    queue = html[html.index("<h2>Queue") :]
    assert str(waits.pk) in queue and "Waits until an earlier run of this task has ended." in queue
    assert f"/panel/p/default/task/{other.pk}/empty-queue/" in queue
    assert 'class="ql-figure ql-yours"' not in html


def test_what_waits_for_a_person_is_loud(owner: User, client: Client, task: Task) -> None:
    ended(owner, task)
    Run.objects.filter(pk=a_run(owner, task).pk).update(status="waiting_approval", holds_place=False)
    html = client.get("/panel/").content.decode()
    assert 'class="ql-figure ql-yours"' in html and figure(html, "Needs approval") == "1"


def test_bars_lead_to_the_runs_of_their_hour_and_stand_in_a_table(
    owner: User, client: Client, task: Task
) -> None:
    now = clock.now()
    run = ended(owner, task, "failed", hours_ago=(now.minute + 1) / 60)
    old = ended(owner, task, hours_ago=50)
    html = client.get("/panel/", headers={"X-Part": "past"}).content.decode()
    links = re.findall(r'<a href="([^"]*since=[^"]*)" aria-label="[^"]*1 run, 1 ended badly"', html)
    assert links and "As a table" in html
    page = client.get(links[0].replace("&amp;", "&")).content.decode()
    assert str(run.pk) in page and str(old.pk) not in page


@pytest.mark.every_hour
def test_days_are_those_of_the_panel(owner: User, task: Task, settings: Any) -> None:
    # Now, and not an hour ago: the leaders are those of today, which may have begun just now.
    ended(owner, task)
    past = overview.past(Project.objects.get(pk="default"))
    assert len(past.hours) == 24 and len(past.days) == 30
    assert sum(column.runs for column in past.days) == 1 and past.day.runs == 1
    assert past.most[0].task == task and past.most[0].longest_ms == 1000


def test_the_same_number_of_queries_for_many_and_none_walks_runs(
    owner: User, client: Client, task: Task
) -> None:
    ended(owner, task)
    going(owner, task)
    ended(owner, task, "failed")
    for _ in range(overview.SHORT):
        a_run(owner, task)
    client.get("/panel/")
    # What is wrong with the installation is asked in both, or in neither.
    health.forget()
    with CaptureQueriesContext(connection) as few:
        client.get("/panel/")
    for number in range(12):
        more = a_task(owner, f"More {number}", concurrency="parallel", max_parallel=9)
        ended(owner, more, "timed_out" if number % 2 else "failed")
        ended(owner, more)
        going(owner, more)
        a_run(owner, more)
    health.forget()
    with CaptureQueriesContext(connection) as many:
        html = client.get("/panel/").content.decode()
    assert len(many) == len(few) <= 44, (len(few), len(many))
    assert not any("COUNT(" in query["sql"] or "OFFSET" in query["sql"] for query in many)
    assert html.count("<tr data-row=") <= 5 * overview.SHORT + 2


def test_parts_answer_304_and_carry_the_badge(owner: User, client: Client, task: Task) -> None:
    ended(owner, task)
    for part in ("1", "past"):
        first = client.get("/panel/", headers={"X-Part": part})
        assert b"<html" not in first.content and first.headers["X-Running"] == ""
        again = client.get("/panel/", headers={"X-Part": part, "If-None-Match": first.headers["ETag"]})
        assert again.status_code == 304 and not again.content
    going(owner, task)
    assert client.get("/panel/", headers={"X-Part": "1"}).headers["X-Running"] == "1"


def test_silent_workers_are_told_to_administrators_only(owner: User, client: Client, task: Task) -> None:
    ended(owner, task)
    at = clock.now() - timedelta(hours=1)
    Node.objects.create(id="node-9", host="box", registered_at=at, last_heartbeat_at=at)
    Worker.objects.create(
        id="node-9:1", node_id="node-9", session_id=str(ids.uuid7()), generation=1, status="online", roles=[],
        capabilities={}, capabilities_hash="0" * 64, max_concurrent_runs=8, available_slots=8, registered_at=at,
        last_heartbeat_at=at, lease_expires_at=at, updated_at=at,
    )  # fmt: skip
    assert "Workers show no life: node-9:1." in client.get("/panel/").content.decode()
    assert "node-9" not in browser(member("viewer", "vic")).get("/panel/").content.decode()


def test_every_problem_is_told_with_its_code(owner: User, client: Client, task: Task) -> None:
    """No housekeeping has run here: what /readyz names by code is said in words."""
    html = client.get("/panel/").content.decode()
    assert "No housekeeping has run yet" in html and '<code class="ql-quiet">scheduler</code>' in html
    assert "housekeeping" not in browser(member("operator", "olga")).get("/panel/").content.decode()
    assert "还没有" in browser(owner, language="zh-hans").get("/panel/").content.decode()


def test_schedules_of_people_who_left_are_told_to_who_may_change_them(owner: User, task: Task) -> None:
    left, stays = member("operator", "olga"), member("operator", "otto")
    draft = TriggerDraft(kind="cron", schedule="0 3 * * *")
    for _ in range(2):
        create_trigger(grant(left, "task.update"), grant(left, "run.start"), task.pk, draft)
    said = "schedules whose author is disabled"
    assert said not in browser(stays).get("/panel/").content.decode()
    IdentitySubject.objects.filter(pk=left.subject_id).update(status="disabled")
    html = browser(stays).get("/panel/").content.decode()
    assert said in html and html.split(said)[1].split("</p>")[0].count(task.name) == 1
    assert said not in browser(member("viewer", "vic")).get("/panel/").content.decode()


def test_the_project_that_was_looked_at_stays(owner: User, client: Client) -> None:
    second = project(owner)
    assert 'href="/panel/p/default/runs/"' in client.get("/panel/").content.decode()
    client.get("/panel/?project=second")
    html = client.get("/panel/tokens/").content.decode()
    assert 'href="/panel/p/second/runs/"' in html
    assert 'href="/panel/p/second/runs/"' in client.get("/panel/").content.decode()
    client.cookies["ql_project"] = f"{second}-bent"
    assert 'href="/panel/p/default/runs/"' in client.get("/panel/").content.decode()
