"""Triggers in the panel: the builder as a page, what a rule means, secrets shown once, why a task did not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.access.models import User
from apps.runs.models import Run
from apps.tasks.models import Task
from apps.triggers import examples
from apps.triggers.models import Trigger
from apps.triggers.services import fire_due
from apps.vault import keyring
from tests.conftest import Time
from tests.panel.kit import a_run, a_task, browser
from tests.people import account, member

pytestmark = pytest.mark.django_db

P = "/panel/p/default"


@pytest.fixture
def task(owner: User) -> Task:
    return a_task(owner)


@pytest.fixture
def keys(tmp_path: Path, settings: Any) -> None:
    """What seals the keys of signatures."""
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()


def rule(**changes: Any) -> dict[str, Any]:
    values = {
        "t_kind": "cron", "t_schedule": "0 3 * * *", "t_timezone": "Asia/Shanghai", "t_every": "10", "t_unit": "min",
        "t_at": "", "t_misfire": "latest", "t_catch_up": "10", "t_grace": "60", "t_jitter": "0", "t_input": "",
    }  # fmt: skip
    return values | changes


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({}, {"kind": "cron", "schedule": "0 3 * * *", "timezone": "Asia/Shanghai", "jitter_ms": 0}),
        ({"t_kind": "interval", "t_every": "1.5", "t_unit": "h"}, {"kind": "interval", "every_ms": 5_400_000}),
        ({"t_kind": "boot"}, {"kind": "boot", "schedule": None}),
        (
            {"t_misfire": "all", "t_catch_up": "7", "t_grace": "2.5", "t_jitter": "30", "t_input": '{"a": [1]}'},
            {"misfire": "all", "catch_up_max": 7, "misfire_grace_ms": 2_500, "jitter_ms": 30_000, "input": {"a": [1]}},
        ),
    ],
)  # fmt: skip
def test_each_kind_is_made(client: Client, task: Task, sent: dict[str, Any], stored: dict[str, Any]) -> None:
    answer = client.post(f"{P}/task/{task.slug}/triggers/new/", rule(**sent))
    assert answer.headers["Location"] == f"{P}/task/{task.slug}/triggers/"
    made = Trigger.objects.get()
    assert {name: getattr(made, name) for name in stored} == stored
    html = client.get(answer.headers["Location"]).content.decode()
    assert f"/triggers/{made.pk}/" in html


def test_once_is_read_by_the_clocks_of_its_zone(time: Time, client: Client, task: Task) -> None:
    sent = rule(t_kind="once", t_at="2027-01-01T08:00", t_timezone="Asia/Shanghai")
    client.post(f"{P}/task/{task.slug}/triggers/new/", sent)
    made = Trigger.objects.get()
    assert made.at is not None and made.at.isoformat() == "2027-01-01T00:00:00+00:00"
    html = client.get(f"{P}/task/{task.slug}/triggers/{made.pk}/").content.decode()
    assert 'value="2027-01-01T08:00:00"' in html


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"t_schedule": "0 3 ? * *"}, "schedule"), ({"t_timezone": "Mars/Base"}, "timezone"),
        ({"t_schedule": ""}, "schedule"),
        ({"t_kind": "interval", "t_every": "soon"}, "every"), ({"t_kind": "once", "t_at": "x"}, "at"),
        ({"t_input": "[1]"}, "input"), ({"t_jitter": "-1"}, "jitter"), ({"t_kind": "never"}, "kind"),
    ],
)  # fmt: skip
def test_faults_stand_at_their_field_and_keep_what_was_typed(
    client: Client, task: Task, wrong: dict[str, str], place: str
) -> None:
    answer = client.post(f"{P}/task/{task.slug}/triggers/new/", rule(**wrong))
    html = answer.content.decode()
    assert answer.status_code == 400 and not Trigger.objects.exists()
    assert f"f-t_{place}" in html and ("ql-wrong" in html or "ql-error" in html)
    assert all(value in html for value in wrong.values() if value)


@pytest.mark.parametrize(
    ("language", "words"), [("en", "At 03:00, every day"), ("zh-hans", "每天")], ids=["en", "zh"]
)
def test_what_a_rule_means_while_it_is_typed(owner: User, language: str, words: str) -> None:
    client = browser(owner, language=language)
    ask = {
        "t_kind": "cron",
        "t_schedule": "0 3 * * *",
        "t_timezone": "Europe/Berlin",
        "t_viewer": "Asia/Tokyo",
    }
    html = client.get(f"{P}/schedule/", ask, headers={"X-Part": "1"}).content.decode()
    assert words in html and html.count("<tr>") == 11 and "Asia/Tokyo" in html and html.count("<li>") == 2
    wrong = client.get(
        f"{P}/schedule/", ask | {"t_schedule": "0 3 ? * *"}, headers={"X-Part": "1"}
    ).content.decode()
    assert "<mark>?</mark>" in wrong and "<tr>" not in wrong
    often = client.get(f"{P}/schedule/", ask | {"t_schedule": "*/10 * * * * *"}).content.decode()
    assert "ql-warning" in often and "8,640" in often
    # A zone the browser made up is the panel's own.
    assert client.get(f"{P}/schedule/", ask | {"t_viewer": "../../etc/passwd"}).status_code == 200


@pytest.mark.usefixtures("keys")
def test_a_webhook_shows_its_address_once(client: Client, task: Task) -> None:
    html = client.post(
        f"{P}/task/{task.slug}/triggers/new/", rule(t_kind="webhook", t_signed="1")
    ).content.decode()
    found = re.search(r"/hooks/([A-Za-z0-9_-]{20,})", html)
    assert found and html.count(found[1]) >= 2 and "curl -X POST" in html and "X-QingLong-Signature" in html
    made = Trigger.objects.get()
    for page in ("triggers/", f"triggers/{made.pk}/"):
        assert found[1] not in client.get(f"{P}/task/{task.slug}/{page}").content.decode()
    again = client.post(f"{P}/task/{task.slug}/triggers/{made.pk}/secret/").content.decode()
    renewed = re.search(r"/hooks/([A-Za-z0-9_-]{20,})", again)
    assert renewed and renewed[1] != found[1]


def test_change_switch_delete_and_a_stale_form(client: Client, task: Task) -> None:
    client.post(f"{P}/task/{task.slug}/triggers/new/", rule())
    made = Trigger.objects.get()
    address = f"{P}/task/{task.slug}/triggers/{made.pk}/"
    assert client.post(address, rule(version="1", t_schedule="5 5 * * *")).status_code == 302
    stale = client.post(address, rule(version="1", t_schedule="6 6 * * *"))
    assert stale.status_code == 409 and "6 6 * * *" in stale.content.decode()
    made.refresh_from_db()
    assert (made.schedule, made.version) == ("5 5 * * *", 2)
    client.post(f"{address}disable/")
    assert not Trigger.objects.get().enabled
    client.post(f"{address}enable/")
    assert Trigger.objects.get().enabled
    client.post(f"{address}delete/")
    assert not Trigger.objects.exists() and client.get(address).status_code == 404


def test_in_a_dialog_the_answer_is_a_part_or_says_where_to_look(client: Client, task: Task) -> None:
    address = f"{P}/task/{task.slug}/triggers/new/"
    part = client.get(address, headers={"X-Part": "form"}).content.decode()
    assert "<html" not in part and 'name="t_schedule"' in part
    wrong = client.post(address, rule(t_schedule="x"), headers={"X-Part": "form"})
    assert "<html" not in wrong.content.decode() and "ql-error" in wrong.content.decode()
    done = client.post(address, rule(), headers={"X-Part": "form"})
    assert (done.status_code, done.headers["X-Location"]) == (204, f"{P}/task/{task.slug}/triggers/")


def test_who_may_only_look_sees_the_rules_and_no_button(owner: User, client: Client, task: Task) -> None:
    client.post(f"{P}/task/{task.slug}/triggers/new/", rule())
    made = Trigger.objects.get()
    viewer = browser(member("viewer", "vic"))
    html = viewer.get(f"{P}/task/{task.slug}/triggers/").content.decode()
    assert "0 3 * * *" in html and f"/triggers/{made.pk}/" not in html and "/triggers/new/" not in html
    for part in ("new/", f"{made.pk}/", f"{made.pk}/delete/", f"{made.pk}/secret/", f"{made.pk}/enable/"):
        answer = viewer.post(f"{P}/task/{task.slug}/triggers/{part}", rule(version="1"))
        assert answer.status_code == 403 and "permission_denied" in answer.content.decode()
    assert browser(account("sam")).get(f"{P}/task/{task.slug}/triggers/").status_code == 404
    assert browser(account("joe")).get(f"{P}/schedule/", {"t_kind": "cron"}).status_code == 404


def test_a_task_and_its_first_trigger_are_made_together_or_not_at_all(client: Client) -> None:
    body = {
        "name": "Nightly", "slug": "", "kind": "shell", "shell": "true", "language": "python", "concurrency": "queue",
        "max_parallel": "2", "priority": "0", "grace": "10", "quota": "16", "do": "save",
    }  # fmt: skip
    wrong = client.post(f"{P}/tasks/new/", body | rule(t_schedule="0 3 ? * *"))
    assert wrong.status_code == 400 and 'href="#f-t_schedule"' in wrong.content.decode()
    assert not Task.objects.exists() and not Trigger.objects.exists()
    assert client.post(f"{P}/tasks/new/", body | rule()).status_code == 302
    assert Trigger.objects.get().task.name == "Nightly"
    client.post(f"{P}/tasks/new/", body | rule(t_kind="manual") | {"name": "By hand"})
    assert Task.objects.count() == 2 and Trigger.objects.count() == 1


def test_why_tells_each_due_time_and_folds_long_rows(
    time: Time, owner: User, client: Client, task: Task
) -> None:
    client.post(f"{P}/task/{task.slug}/triggers/new/", rule(t_schedule="*/10 * * * *", t_timezone="UTC"))
    client.post(f"{P}/task/{task.slug}/disable/")
    time.advance(600_000)
    fire_due(lambda _due: "late")
    time.advance(3 * 3_600_000 - 600_000)
    html = client.get(f"{P}/task/{task.slug}/why/").content.decode()
    assert "18 times" in html
    assert "The task was disabled." in html and "ann" in html and "/enable/" in html
    assert "Enable the task" in html
    client.post(f"{P}/task/{task.slug}/enable/")
    again = client.get(f"{P}/task/{task.slug}/why/").content.decode()
    assert "The task was disabled." in again and "Enable the task" not in again
    quiet = client.get(
        f"{P}/task/{task.slug}/why/?since=2020-01-01T00:00&until=2020-01-02T00:00"
    ).content.decode()
    assert "It was not due in this time." in quiet
    for nonsense in (
        "?hours=x",
        "?since=x&until=y",
        "?since=2027-01-01T00:00&until=2026-01-01T00:00",
        "?hours=99999",
    ):
        assert client.get(f"{P}/task/{task.slug}/why/{nonsense}").status_code == 200, nonsense
    found = client.get(f"{P}/skips/?task={task.name}&hours=168")
    assert found.headers["Location"] == f"{P}/task/{task.slug}/why/?hours=168"
    assert "There is no such task." in client.get(f"{P}/skips/?task=nothing").content.decode()


def test_why_offers_to_enable_a_trigger_only_while_it_is_off(time: Time, client: Client, task: Task) -> None:
    client.post(f"{P}/task/{task.slug}/triggers/new/", rule(t_schedule="0 * * * *", t_timezone="UTC"))
    trigger = Trigger.objects.get()
    client.post(f"{P}/task/{task.slug}/triggers/{trigger.pk}/disable/")
    time.advance(2 * 3_600_000)
    assert "Enable the trigger" in client.get(f"{P}/task/{task.slug}/why/").content.decode()
    client.post(f"{P}/task/{task.slug}/triggers/{trigger.pk}/enable/")
    again = client.get(f"{P}/task/{task.slug}/why/").content.decode()
    assert "The trigger was disabled." in again and "Enable the trigger" not in again


def test_examples_come_with_one_click_and_go_together(owner: User, client: Client) -> None:
    mine = a_task(owner, "Mine")
    client.post(f"{P}/tasks/examples/")
    client.post(f"{P}/tasks/examples/")
    assert Task.objects.count() == 4 and Trigger.objects.count() == 1
    kept = Task.objects.get(example="diary")
    client.post(
        f"{P}/task/{kept.slug}/edit/",
        {"version": "1", "name": "My diary", "slug": kept.slug, "kind": "shell", "shell": "date",
         "concurrency": "queue", "priority": "0", "grace": "10", "quota": "16"},
    )  # fmt: skip
    a_run(owner, Task.objects.get(example="hello-python"))
    assert "Remove the examples" in client.get(f"{P}/tasks/").content.decode()
    client.post(f"{P}/tasks/examples/remove/")
    left = Task.objects.filter(archived_at=None)
    assert set(left) == {mine, kept} and Run.objects.get().status == "cancelled"
    assert not examples.any_left("default")
    operator = browser(member("operator", "olga"))
    assert operator.post(f"{P}/tasks/examples/remove/").status_code == 403
    assert browser(member("viewer", "vic")).post(f"{P}/tasks/examples/").status_code == 403
