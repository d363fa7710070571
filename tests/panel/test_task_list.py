"""The list of tasks: orders, search, history, views, and a number of queries that does not grow."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.core import clock
from apps.panel import task_list
from apps.panel.task_list import Wanted
from apps.runs.models import LastEnd, Run
from apps.tasks.models import SavedView, Task
from apps.triggers.drafts import TriggerDraft
from apps.triggers.models import Trigger
from apps.triggers.services import create_trigger
from tests.panel.kit import a_run, a_task, browser
from tests.people import account, grant, member

pytestmark = pytest.mark.django_db

LIST = "/panel/p/default/tasks/"


def a_trigger(owner: User, task: Task, **fields: Any) -> Trigger:
    """A trigger, a cron rule unless said otherwise."""
    draft = TriggerDraft(**({"kind": "cron", "schedule": "0 3 * * *"} | fields))
    return create_trigger(grant(owner, "task.update"), grant(owner, "run.start"), task.pk, draft).trigger


def ended(task: Task, minutes_ago: int, status: str = "succeeded") -> None:
    """A last end as the fold would have left it."""
    at = clock.now() - timedelta(minutes=minutes_ago)
    LastEnd.objects.create(
        task=task, project_id=task.project_id, run_id=task.pk, status=status, finished_at=at
    )


def names(order: str = "usual", search: str = "", show: str = "", limit_hops: int = 20) -> list[str]:
    """All names in an order, page after page."""
    wanted, cursor, found = Wanted(search, order, show), None, []
    for _ in range(limit_hops):
        page = task_list.page("default", wanted, cursor)
        found += [row.task.name for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the pages never end")


def test_every_order_goes_through_all_tasks_once_in_pages(
    owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.core.pages.DEFAULT_LIMIT", 2)
    made = [a_task(owner, name) for name in ("beta", "Alpha", "gamma", "délta", "工作", "zeta")]
    for number, task in enumerate(made[:4]):
        ended(task, minutes_ago=(number + 1) * 10)
    for task, hour in zip(made[1:5], (5, 4, 4, 6), strict=True):
        a_trigger(owner, task, schedule=f"0 {hour} * * *", timezone="UTC")
    a_trigger(owner, made[3], schedule="30 23 * * *", timezone="UTC")
    newest = [task.name for task in reversed(made)]
    assert names() == newest
    assert names("name")[:2] == ["Alpha", "beta"] and names("-name") == names("name")[::-1]
    assert names("last") == ["beta", "Alpha", "gamma", "délta", "zeta", "工作"]
    assert names("-last") == ["délta", "gamma", "Alpha", "beta", "zeta", "工作"]
    at = {
        task.pk: task_list.schedules.outlooks([task.pk]).get(task.pk, task_list.schedules.NONE).next_at
        for task in made
    }
    timed = sorted((task for task in made if at[task.pk]), key=lambda task: (at[task.pk], task.pk))
    rest = [task.name for task in reversed(made) if not at[task.pk]]
    assert names("next") == [task.name for task in timed] + rest
    assert sorted(names("-next")) == sorted(newest) and names("-next")[-len(rest) :] == rest


def test_what_a_row_knows(owner: User, client: Client) -> None:
    task = a_task(owner, "Sync", labels=["nightly"], pinned=True)
    for status in ("succeeded", "failed"):
        run = a_run(owner, task)
        now = clock.now()
        Run.objects.filter(pk=run.pk).update(
            status=status, started_at=now, finished_at=now, holds_place=False
        )
    current = a_run(owner, task)
    a_trigger(owner, task, schedule="0 4 * * *", timezone="Asia/Shanghai")
    (row,) = task_list.page("default", Wanted()).items
    assert row.statuses == ["succeeded", "failed", "queued"]
    assert row.last is not None and row.last.pk == current.pk
    assert row.last_end is not None and row.last_end.status == "failed"
    assert row.current == current and row.schedule.next_at is not None
    html = client.get(LIST).content.decode()
    assert "0 4 * * *" in html and "Asia/Shanghai" in html and "3 runs" in html and 'title="Pinned"' in html
    assert f'href="/panel/runs/{current.pk}/#log"' in html


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("status:failed", {"bad"}), ("status:failing", {"bad", "gone"}), ("status:succeeded", {"good"}),
        ("status:lost", {"gone"}), ("status:queued", {"waits"}), ("status:disabled", {"off"}),
        ("status:idle", {"bad", "good", "gone"}), ("status:nonsense", set()), ("schedule:*/7", {"good"}),
        ("*/7", {"good"}), ("schedule:cron", {"good"}), ("status:failing name:gone", {"gone"}),
    ],
)  # fmt: skip
def test_status_and_schedule_are_searched(owner: User, search: str, found: set[str]) -> None:
    made = {name: a_task(owner, name) for name in ("bad", "good", "gone", "waits", "off")}
    ended(made["bad"], 1, "failed")
    ended(made["good"], 1)
    lost = a_run(owner, made["gone"])
    Run.objects.filter(pk=lost.pk).update(status="lost", holds_place=False)
    a_run(owner, made["waits"])
    Task.objects.filter(pk=made["off"].pk).update(enabled=False)
    a_trigger(owner, made["good"], schedule="*/7 * * * *")
    assert set(names(search=search)) == found


def test_queries_do_not_grow_and_pages_stay_small(owner: User, client: Client) -> None:
    def counted(address: str = LIST) -> tuple[int, str]:
        with CaptureQueriesContext(connection) as seen:
            html = client.get(address).content.decode()
        assert not [query for query in seen if "COUNT(" in query["sql"].upper() or " OFFSET " in query["sql"]]
        return len(seen), html

    first = a_task(owner, "First")
    a_run(owner, first)
    a_trigger(owner, first)
    few, _html = counted()
    made = [a_task(owner, f"A task with a name {n}", labels=["nightly", "database"]) for n in range(60)]
    for task in made:
        a_trigger(owner, task)
        a_run(owner, task)
        ended(task, 5)
    many, html = counted()
    assert many == few and html.count("data-row=") == 50 and len(html) < 150_000
    for order in SavedView.Order.values:
        assert counted(f"{LIST}?order={order}")[0] <= few + 1, order


def test_views_and_columns(client: Client) -> None:
    keep = {
        "name": "夜间",
        "search": "label:nightly",
        "order": "-last",
        "columns": "1",
        "column": ["state"],
        "compact": "1",
    }
    answer = client.post(f"{LIST}views/", keep)
    view = SavedView.objects.get()
    assert answer.headers["Location"] == f"{LIST}?view={view.pk}"
    assert (view.hidden, view.compact, view.order) == (["last", "history", "next"], True, "-last")
    a_task(User.objects.get(username="ann"), "Nightly one", labels=["nightly"])
    html = client.get(f"{LIST}?view={view.pk}").content.decode()
    assert "ql-compact" in html and "Next run" not in html.split("<thead>")[1].split("</thead>")[0]
    assert 'value="label:nightly"' in html and "Keep in" not in html
    assert "Keep in “夜间”" in client.get(f"{LIST}?view={view.pk}&order=name").content.decode()
    client.post(f"{LIST}views/", keep | {"name": "", "view": str(view.pk), "order": "name"})
    view.refresh_from_db()
    assert (view.name, view.order) == ("夜间", "name")
    refused = client.post(f"{LIST}views/", {"name": "夜间"}, follow=True).content.decode()
    assert "view_name_taken" in refused
    client.post(f"{LIST}views/{view.pk}/remove/")
    assert not SavedView.objects.exists()


def test_views_are_put_in_order(client: Client) -> None:
    for name in "abc":
        client.post(f"{LIST}views/", {"name": f"view-{name}"})
    last = SavedView.objects.get(name="view-c")

    def order() -> list[str]:
        html = client.get(f"{LIST}?view={last.pk}").content.decode()
        return re.findall(r">view-(\w)</a>", html)

    assert order() == ["a", "b", "c"]
    html = client.get(f"{LIST}?view={last.pk}").content.decode()
    assert f"views/{last.pk}/move/earlier/" in html and f"views/{last.pk}/move/later/" not in html
    for way, expected in (("earlier", "acb"), ("earlier", "cab"), ("earlier", "cab"), ("later", "acb")):
        answer = client.post(f"{LIST}views/{last.pk}/move/{way}/")
        assert answer.headers["Location"] == f"{LIST}?view={last.pk}" and order() == list(expected)
    assert client.post(f"{LIST}views/{last.pk}/move/sideways/").status_code == 404
    assert browser(member("viewer", "vic")).post(f"{LIST}views/{last.pk}/move/later/").status_code == 404


def test_a_viewer_keeps_views_and_sees_nothing_to_press(owner: User) -> None:
    task = a_task(owner)
    client = browser(member("viewer", "vic"))
    client.post(f"{LIST}views/", {"name": "mine"})
    assert SavedView.objects.get().name == "mine"
    html = client.get(LIST).content.decode()
    assert task.name in html
    for forbidden in ("ql-bulk", 'name="task"', "/run/", "/edit/", "/pin/", "examples/"):
        assert forbidden not in html, forbidden
    assert client.get(f"{LIST}?view={SavedView.objects.get().pk}").status_code == 200


def test_the_empty_list_says_what_to_do(owner: User, client: Client) -> None:
    html = client.get(LIST).content.decode()
    assert "Add three examples" in html and "/tasks/new/" in html
    assert "Add three examples" not in browser(member("viewer", "vic")).get(LIST).content.decode()
    assert browser(account("sam")).get(LIST).status_code == 404
