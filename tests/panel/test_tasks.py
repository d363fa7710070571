"""The task list, the form and the row buttons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.runs.models import Run
from apps.tasks import queries
from apps.tasks.models import Task
from apps.triggers.models import Trigger
from tests.panel.kit import a_run, a_task, browser
from tests.people import account, member

pytestmark = pytest.mark.django_db

NEW = "/panel/p/default/tasks/new/"
LIST = "/panel/p/default/tasks/"


def form(**changes: Any) -> dict[str, Any]:
    values = {
        "name": "Back up", "slug": "", "kind": "shell", "shell": "echo 1", "language": "python", "source": "",
        "args": "", "argv": "", "concurrency": "queue", "max_parallel": "2", "priority": "0", "timeout": "",
        "grace": "10", "quota": "16", "do": "save",
    }  # fmt: skip
    return values | changes


def document(slug: str) -> dict[str, Any]:
    return queries.view(queries.find("default", slug)).document()


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({"kind": "shell", "shell": "a\r\nb\r\n"}, {"shell": "a\nb\n"}),
        ({"kind": "command", "argv": "pg_dump\r\n-Fc\r\nmy db"}, {"command": ["pg_dump", "-Fc", "my db"]}),
        (
            {"kind": "script", "language": "typescript", "source": "\n\tlet x\r\n", "args": "a\r\n\r\nb"},
            {"script": {"language": "typescript", "source": "\n\tlet x\n", "args": ["a", "", "b"]}},
        ),
    ],
)
def test_each_kind_is_made(client: Client, sent: dict[str, Any], stored: dict[str, Any]) -> None:
    answer = client.post(NEW, form(**sent))
    assert answer.headers["Location"] == "/panel/p/default/task/back-up/"
    assert document("back-up") | stored == document("back-up")


def test_the_same_form_sent_again_makes_no_second_task(client: Client, owner: User) -> None:
    """The answer to the first was lost; whoever changed something meanwhile means another task."""
    sent = form(once="abcdefgh1234", t_kind="cron", t_schedule="0 3 * * *", t_timezone="UTC")
    first = client.post(NEW, sent).headers["Location"]
    assert client.post(NEW, sent).headers["Location"] == first
    assert client.post(NEW, sent | {"do": "save-and-run"}).headers["Location"].startswith("/panel/runs/")
    assert Task.objects.count() == 1 and Trigger.objects.count() == 1
    assert client.post(NEW, sent | {"name": "Other"}).headers["Location"] != first
    assert client.post(NEW, sent | {"once": "12345678abcd"}).headers["Location"] != first
    assert browser(member("operator", "otto")).post(NEW, sent).headers["Location"] != first
    assert Task.objects.count() == 4 and len(set(Task.objects.values_list("creation_key", flat=True))) == 4
    client.post(NEW, form())
    client.post(NEW, form())
    assert Task.objects.count() == 6, "without a key every form is a task"


def test_a_script_without_its_runner_is_told_of_before_it_fails(
    client: Client, settings: Any, tmp_path: Path
) -> None:
    settings.SCRIPT_PATH = str(tmp_path)
    sent = form(kind="script", language="typescript", source="let x")
    html = client.post(NEW, sent, follow=True).content.decode()
    assert "Runs will fail here: scripts in TypeScript need one of tsx, bun, deno, node &gt;= 22.6" in html
    (tmp_path / "tsx").write_text("#!/bin/sh\n")
    (tmp_path / "tsx").chmod(0o755)
    assert "Runs will fail here" not in client.get("/panel/p/default/task/back-up/").content.decode()


def test_environment_values_come_and_go_byte_for_byte(client: Client) -> None:
    names = ["A", "B", "C", "D"]
    values = ["one\r\ntwo\r\n", " \"'$HOME`x` ", "", "\t末 "]
    client.post(NEW, form(env_name=[*names, ""], env_value=[*values, ""]))
    assert document("back-up")["env"] == {"A": "one\ntwo\n", "B": " \"'$HOME`x` ", "C": "", "D": "\t末 "}


def test_a_value_with_carriage_returns_survives_an_edit_of_something_else(
    owner: User, client: Client
) -> None:
    kept = {"A": "x\r\ny\rz", "B": "1"}
    task = a_task(owner, env=kept, shell="echo a\r\necho b")
    page = client.get(f"/panel/p/default/task/{task.slug}/edit/").content.decode()
    assert 'name="version" value="1"' in page
    changed = form(
        name="Other", slug=task.slug, version="1", shell="echo a\r\necho b",
        env_name=["A", "B"], env_value=["x\r\ny\r\nz", "2"],
    )  # fmt: skip
    assert client.post(f"/panel/p/default/task/{task.slug}/edit/", changed).status_code == 302
    found = document(task.slug)
    assert found["env"] == {"A": "x\r\ny\rz", "B": "2"} and found["shell"] == "echo a\r\necho b"
    assert found["name"] == "Other"


def test_saving_without_a_change_makes_no_revision(owner: User, client: Client) -> None:
    task = a_task(owner, timeout_ms=1500, log_quota_bytes=65_536, labels=["a", "b"])
    sent = form(
        name=task.name,
        slug=task.slug,
        version="1",
        shell="echo hello",
        timeout="1.5",
        quota="0.0625",
        labels="a, b",
    )
    client.post(f"/panel/p/default/task/{task.slug}/edit/", sent)
    assert queries.find("default", task.slug).version == 1


def test_all_faults_are_listed_at_once_and_nothing_is_made(client: Client) -> None:
    answer = client.post(NEW, form(name="", shell=" ", slug="No!", max_parallel="x", concurrency="parallel"))
    html = answer.content.decode()
    assert (
        answer.status_code == 400
        and "A whole number is expected." in html
        and 'href="#f-max_parallel"' in html
    )
    answer = client.post(NEW, form(name="", shell=" ", slug="No!", timeout="0.1"))
    html = answer.content.decode()
    assert answer.status_code == 400
    for place in ("name", "shell", "slug", "timeout"):
        assert f'href="#f-{place}"' in html and f'id="f-{place}"' in html, place
    assert not Task.objects.exists()


def test_environment_faults_keep_what_was_typed(client: Client) -> None:
    html = client.post(NEW, form(env_name=["A", "A"], env_value=["1", "2<"])).content.decode()
    assert "A name stands there twice." in html and "2&lt;" in html


def test_a_taken_short_name_is_a_fault_of_its_field(owner: User, client: Client) -> None:
    a_task(owner, slug="mine")
    answer = client.post(NEW, form(slug="mine"))
    assert answer.status_code == 400 and "has this short name" in answer.content.decode()


def test_a_stale_form_keeps_its_text_and_can_be_put_on_top(owner: User, client: Client) -> None:
    task = a_task(owner)
    edit = f"/panel/p/default/task/{task.slug}/edit/"
    client.post(edit, form(slug=task.slug, version="1", shell="echo theirs"))
    stale = client.post(edit, form(slug=task.slug, version="1", shell="echo mine"))
    html = stale.content.decode()
    assert stale.status_code == 409 and "ann saved another version" in html and "echo mine" in html
    assert 'name="version" value="2"' in html and document(task.slug)["shell"] == "echo theirs"
    client.post(edit, form(slug=task.slug, version="2", shell="echo mine"))
    assert document(task.slug)["shell"] == "echo mine"


def test_save_and_run_opens_the_run(client: Client) -> None:
    answer = client.post(NEW, form(do="save-and-run", once="abcdefgh1234"))
    run = Run.objects.get()
    assert answer.headers["Location"] == f"/panel/runs/{run.pk}/"
    assert client.get(f"/panel/runs/{run.pk}/").status_code == 200


def test_the_same_click_twice_starts_once(owner: User, client: Client) -> None:
    task = a_task(owner, concurrency="parallel", max_parallel=9)
    run = f"/panel/p/default/task/{task.slug}/run/"
    for _ in range(2):
        client.post(run, {"once": "abcdefgh1234", "next": LIST})
    assert Run.objects.count() == 1
    client.post(run, {"once": "abcdefgh5678"})
    client.post(run)
    assert Run.objects.count() == 3
    assert Run.objects.filter(trigger_type="manual", idempotency_key__startswith="panel:").count() == 2


def test_a_start_that_is_skipped_says_so(owner: User, client: Client) -> None:
    task = a_task(owner, concurrency="skip")
    a_run(owner, task)
    answer = client.post(f"/panel/p/default/task/{task.slug}/run/", follow=True)
    assert "Not started" in answer.content.decode() and Run.objects.count() == 1
    assert "skips starts meanwhile" in client.get("/panel/p/default/skips/").content.decode()


def test_enable_disable_copy_archive(owner: User, client: Client) -> None:
    task = a_task(owner)
    base = f"/panel/p/default/task/{task.slug}"
    run = a_run(owner, task)
    client.post(f"{base}/disable/")
    run.refresh_from_db()
    assert run.status == "cancelled" and not Task.objects.get().enabled
    refused = client.post(f"{base}/run/", follow=True)
    assert "task_disabled" in refused.content.decode()
    client.post(f"{base}/enable/")
    copied = client.post(f"{base}/copy/")
    assert copied.headers["Location"] == "/panel/p/default/task/back-up-2/edit/"
    client.post(f"{base}/archive/")
    assert "Back up (copy)" in (html := client.get(LIST).content.decode())
    assert f"task/{task.slug}/run/" not in html
    archived = client.get(f"{LIST}?show=archived").content.decode()
    assert f"/panel/p/default/task/{task.pk}/" in archived
    assert client.get(f"/panel/p/default/task/{task.pk}/").status_code == 200
    assert client.get(f"/panel/p/default/task/{task.pk}/edit/").status_code == 409


@pytest.mark.parametrize("action", ["run", "enable", "disable", "copy", "archive"])
def test_looking_at_an_action_changes_nothing(owner: User, client: Client, action: str) -> None:
    task = a_task(owner)
    with CaptureQueriesContext(connection) as seen:
        answer = client.get(f"/panel/p/default/task/{task.slug}/{action}/")
    assert answer.status_code == (200 if action == "archive" else 404)
    assert all(query["sql"].startswith("SELECT") for query in seen)


def test_a_viewer_sees_no_button_and_is_refused(owner: User) -> None:
    task = a_task(owner)
    client = browser(member("viewer", "vic"))
    html = client.get(LIST).content.decode()
    assert task.name in html and "/run/" not in html and "/tasks/new/" not in html and "/edit/" not in html
    for part in ("run", "disable", "copy", "archive"):
        answer = client.post(f"/panel/p/default/task/{task.slug}/{part}/")
        assert answer.status_code == 403 and "permission_denied" in answer.content.decode()
    assert client.get(NEW).status_code == 403 and client.post(NEW, form()).status_code == 403
    assert not Run.objects.exists() and Task.objects.count() == 1


def test_for_a_stranger_the_project_does_not_exist(owner: User) -> None:
    task = a_task(owner)
    run = a_run(owner, task)
    client = browser(account("sam"))
    for path in (
        "p/default/tasks/",
        f"p/default/task/{task.slug}/",
        f"runs/{run.pk}/",
        f"runs/{run.pk}/log/",
    ):
        real = client.get(f"/panel/{path}")
        fake = client.get(f"/panel/{path}".replace("default", "nowhere").replace(str(run.pk), str(task.pk)))
        assert real.status_code == fake.status_code == 404
        assert "not_found" in real.content.decode()
    assert client.post(f"/panel/runs/{run.pk}/stop/").status_code == 404
    assert client.get("/panel/").status_code == 200


def test_pages_of_fifty_in_the_order_of_old_and_a_fixed_number_of_queries(
    owner: User, client: Client
) -> None:
    a_task(owner, "First", pinned=True)
    with CaptureQueriesContext(connection) as few:
        client.get(LIST)
    made = [a_task(owner, f"Task {number}", concurrency="parallel", max_parallel=5) for number in range(54)]
    for task in made[:9]:
        a_run(owner, task)
    with CaptureQueriesContext(connection) as many:
        html = client.get(LIST).content.decode()
    assert len(many) <= len(few) + 1
    assert html.count('class="ql-actions-cell"') == 50 and html.index("First") < html.index("Task 53")
    assert len(html) < 150_000
    older = html[html.index('rel="next" href="') + 17 :].split('"')[0].replace("&amp;", "&")
    rest = client.get(LIST + older).content.decode()
    assert rest.count('class="ql-actions-cell"') == 5 and "Task 0" in rest and ">First</a>" not in rest
    assert client.get(f"{LIST}?cursor=nonsense").status_code == 400


def test_search_and_labels(owner: User, client: Client) -> None:
    a_task(owner, "Sync feed", labels=["nightly"])
    a_task(owner, "Other")
    html = client.get(f"{LIST}?search=feed").content.decode()
    assert "Sync feed" in html and "Other</a>" not in html
    html = client.get(f"{LIST}?search=label:nightly").content.decode()
    assert "Sync feed" in html and "Other</a>" not in html
    assert "No task in this view" in client.get(f"{LIST}?search=zzz").content.decode()


def test_the_queue_is_emptied_and_what_runs_goes_on(owner: User, client: Client) -> None:
    task = a_task(owner)
    first, *waiting = [a_run(owner, task) for _ in range(3)]
    Run.objects.filter(pk=first.pk).update(status="running")
    first.attempts.update(status="running")
    answer = client.post(f"/panel/p/default/task/{task.slug}/empty-queue/", follow=True)
    assert "2 runs were taken out of the queue." in answer.content.decode()
    assert set(Run.objects.filter(pk__in=[run.pk for run in waiting]).values_list("status", flat=True)) == {
        "cancelled"
    }
    first.refresh_from_db()
    assert first.status == "running" and first.cancel_requested_at is None
