"""One action on many tasks: each has its own transaction, its own right and its own outcome."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from apps.access.models import User
from apps.panel import bulk
from apps.runs.models import Run
from apps.tasks.models import Batch, Task
from tests.panel.kit import a_run, a_task, browser
from tests.people import member, project

pytestmark = pytest.mark.django_db

BULK = "/panel/p/default/tasks/bulk/"
LIST = "/panel/p/default/tasks/"


def send(client: Client, action: str, tasks: list[Task], **more: Any) -> Any:
    return client.post(
        BULK, {"do": action, "task": [str(task.pk) for task in tasks], "next": LIST, **more}, follow=True
    )


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("enable", "2 enabled."), ("disable", "2 disabled."), ("pin", "2 pinned."), ("unpin", "2 unpinned."),
        ("label", "2 labelled."), ("unlabel", "label taken off 2."), ("run", "2 started."), ("archive", "2 archived."),
    ],
)  # fmt: skip
def test_each_action_does_what_it_says(owner: User, client: Client, action: str, said: str) -> None:
    tasks = [a_task(owner, name, labels=["kept"]) for name in ("one", "two")]
    html = send(client, action, tasks, value="夜间", sure="1").content.decode()
    assert said in html
    found = Task.objects.order_by("pk")
    state = {
        "disable": not any(task.enabled for task in found), "pin": all(task.pinned for task in found),
        "label": all(task.labels == ["kept", "夜间"] for task in found), "run": Run.objects.count() == 2,
        "archive": all(task.archived_at for task in found),
    }  # fmt: skip
    assert state.get(action, True)


def test_stopping_takes_what_runs_and_what_waits(owner: User, client: Client) -> None:
    task, idle = a_task(owner, "busy"), a_task(owner, "idle")
    runs = [a_run(owner, task) for _ in range(2)]
    asked = send(client, "stop", [task, idle]).content.decode()
    assert "Stop what 2 tasks run?" in asked and Run.objects.filter(status="queued").count() == 2
    html = send(client, "stop", [task, idle], sure="1").content.decode()
    assert "1 stopped, 1 not." in html and "It does not run." in html
    assert {run.status for run in Run.objects.filter(pk__in=[run.pk for run in runs])} == {"cancelled"}


def test_ten_and_more_ask_first_and_a_refusal_stops_no_other(owner: User, client: Client) -> None:
    tasks = [a_task(owner, f"task {n}") for n in range(11)]
    Task.objects.filter(pk=tasks[4].pk).update(enabled=False)
    asked = send(client, "run", tasks, once="abcdefgh1234").content.decode()
    assert "Run 11 tasks?" in asked and not Run.objects.exists()
    html = send(client, "run", tasks, once="abcdefgh1234", sure="1").content.decode()
    assert "10 started, 1 not." in html and "task_disabled" in html and "task 4" in html
    # The same click twice starts nothing twice.
    send(client, "run", tasks, once="abcdefgh1234", sure="1")
    assert Run.objects.count() == 10


def test_a_right_that_is_lost_on_the_way_is_told(owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.projects.policy import authorize
    from tests.people import give, principal

    tasks = [a_task(owner, name) for name in ("one", "two")]
    operator = member("operator", "olga")
    calls = iter(range(9))

    def grant_anew() -> Any:
        if next(calls) == 1:
            give(operator, "viewer", version=2)
        return authorize(principal(operator), "default", "task.update", origin="tests")

    outcomes = bulk.carry_out(grant_anew, tasks, bulk.Wish("pin"))
    assert [bool(outcome.refusal) for outcome in outcomes] == [False, True]
    assert "permission_denied" in outcomes[1].refusal
    assert list(Task.objects.filter(pinned=True)) == [tasks[0]]


def test_who_may_not_is_refused_and_nothing_of_other_projects_is_touched(owner: User, client: Client) -> None:
    task = a_task(owner)
    viewer = browser(member("viewer", "vic"))
    for action in bulk.ACTIONS:
        answer = viewer.post(BULK, {"do": action, "task": [str(task.pk)], "sure": "1", "value": "x"})
        assert answer.status_code == 403 and "permission_denied" in answer.content.decode()
    operator = browser(member("operator", "olga"))
    assert operator.post(BULK, {"do": "archive", "task": [str(task.pk)], "sure": "1"}).status_code == 403
    second = project(owner)
    theirs = a_task(owner, "Theirs", second)
    html = send(client, "archive", [theirs], sure="1").content.decode()
    theirs.refresh_from_db()
    assert theirs.archived_at is None and "No task was chosen." in html


@pytest.mark.parametrize(
    "sent", [{}, {"do": "explode"}, {"do": "pin", "task": ["nonsense"]}, {"do": "label"}]
)
def test_bad_input_changes_nothing(owner: User, client: Client, sent: dict[str, Any]) -> None:
    task = a_task(owner)
    answer = client.post(BULK, {"task": [str(task.pk)]} | sent)
    assert answer.status_code in (302, 404)
    task.refresh_from_db()
    assert task.version == 1


@pytest.mark.parametrize("field", ["value", "search", "show", "once"])
@pytest.mark.parametrize("more", [{}, {"all": "1"}, {"all": "1", "sure": "1"}])
def test_a_text_that_no_database_keeps_is_refused(
    owner: User, client: Client, field: str, more: dict[str, str]
) -> None:
    task = a_task(owner)
    sent = {"do": "label", "value": "x", "task": [str(task.pk)], **more, field: "a\0b"}
    assert client.post(BULK, sent).status_code == 400
    assert not Batch.objects.exists()
