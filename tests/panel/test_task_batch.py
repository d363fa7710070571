"""One action on all tasks that match, in the background, as whoever asked for it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from apps.access.models import User
from apps.panel import batch_job
from apps.runs.models import Run
from apps.tasks.models import Batch, Task
from tests.panel.kit import a_task, browser
from tests.people import give, member

pytestmark = pytest.mark.django_db

BULK = "/panel/p/default/tasks/bulk/"


def begin(client: Client, action: str, search: str = "label:many", **more: Any) -> Batch:
    """Asks, says yes, and gives the batch that was begun."""
    sent = {"do": action, "all": "1", "search": search, **more}
    asked = client.post(BULK, sent).content.decode()
    assert 'name="sure"' in asked and not Batch.objects.filter(state="running").exists()
    answer = client.post(BULK, sent | {"sure": "1"})
    batch = Batch.objects.get(state="running")
    assert answer.headers["Location"] == f"/panel/p/default/tasks/batch/{batch.pk}/"
    return batch


def many(owner: User, count: int) -> list[Task]:
    return [a_task(owner, f"task {number}", labels=["many"]) for number in range(count)]


def test_all_that_match_and_were_there_are_done_and_no_other(owner: User, client: Client) -> None:
    tasks, other = many(owner, 45), a_task(owner, "Other")
    batch = begin(client, "pin")
    later = a_task(owner, "Later", labels=["many"])
    assert "0 pinned" in client.get(f"/panel/p/default/tasks/batch/{batch.pk}/").content.decode()
    assert batch_job.chunk(batch.pk)
    batch.refresh_from_db()
    assert batch.done == batch_job.CHUNK and batch.state == "running"
    # A crash between two chunks costs nothing: the next pass goes on behind the cursor.
    batch_job.carry_on({})
    batch.refresh_from_db()
    assert (batch.done, batch.refused, batch.state) == (45, 0, "done")
    assert set(Task.objects.filter(pinned=True)) == set(tasks)
    assert not Task.objects.filter(pk__in=[other.pk, later.pk], pinned=True).exists()
    assert "45 pinned" in client.get(f"/panel/p/default/tasks/batch/{batch.pk}/").content.decode()


def test_refusals_are_listed_and_a_repeated_chunk_starts_nothing_twice(owner: User, client: Client) -> None:
    tasks = many(owner, 3)
    Task.objects.filter(pk=tasks[1].pk).update(enabled=False)
    batch = begin(client, "run")
    batch_job.chunk(batch.pk)
    Batch.objects.filter(pk=batch.pk).update(cursor=None)
    batch_job.carry_on({})
    assert Run.objects.count() == 2
    html = client.get(f"/panel/p/default/tasks/batch/{batch.pk}/").content.decode()
    assert "task 1" in html and "task_disabled" in html


def test_a_right_that_is_lost_ends_the_rest(owner: User) -> None:
    many(owner, 25)
    operator = member("operator", "olga")
    batch = begin(browser(operator), "pin")
    batch_job.chunk(batch.pk)
    give(operator, "viewer", version=2)
    batch_job.carry_on({})
    batch.refresh_from_db()
    assert (batch.state, batch.done, batch.refused) == ("denied", batch_job.CHUNK, 0)
    assert batch.finished_at is not None
    page = browser(owner).get(f"/panel/p/default/tasks/batch/{batch.pk}/")
    assert page.status_code == 404, "it is nobody else's"
    give(operator, "operator", version=3)
    html = browser(operator).get(f"/panel/p/default/tasks/batch/{batch.pk}/").content.decode()
    assert "no longer have the right" in html
    assert Task.objects.filter(pinned=True).count() == batch_job.CHUNK


def test_it_is_stopped_by_who_began_it_and_seen_by_nobody_else(owner: User, client: Client) -> None:
    many(owner, 25)
    batch = begin(client, "archive")
    address = f"/panel/p/default/tasks/batch/{batch.pk}/"
    stranger = browser(member("owner", "bob"))
    assert stranger.get(address).status_code == 404 and stranger.post(address).status_code == 404
    second = client.post(
        BULK, {"do": "pin", "all": "1", "search": "", "sure": "1"}, follow=True
    ).content.decode()
    assert "batch_running" in second and Batch.objects.count() == 1
    batch_job.chunk(batch.pk)
    assert client.post(address).status_code == 302
    batch_job.carry_on({})
    assert Task.objects.filter(archived_at=None).count() == 5
    batch.refresh_from_db()
    assert batch.state == "stopped" and batch.finished_at is not None


def test_who_may_not_begins_nothing(owner: User) -> None:
    many(owner, 1)
    viewer = browser(member("viewer", "vic"))
    for action in ("run", "pin", "archive"):
        answer = viewer.post(BULK, {"do": action, "all": "1", "search": "", "sure": "1"})
        assert answer.status_code == 403
    assert not Batch.objects.exists()
