"""A task's own pages: its head, thirty days, revisions side by side, archiving with live runs, saving by script."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from apps.access.models import User
from apps.core import clock
from apps.runs.models import Run, RunHourTotal
from apps.tasks import queries
from apps.tasks.models import Task
from apps.tasks.services import update_task
from tests.panel.kit import a_run, a_task, browser
from tests.panel.test_task_list import a_trigger
from tests.panel.test_tasks import form
from tests.people import grant, member

pytestmark = pytest.mark.django_db

P = "/panel/p/default"


def text(client: Client, path: str) -> str:
    answer = client.get(f"{P}/{path}")
    assert answer.status_code == 200, path
    return answer.content.decode()


@pytest.mark.every_hour
def test_the_head_says_when_it_runs_and_how_the_last_run_ended(owner: User, client: Client) -> None:
    task = a_task(owner)
    assert "Runs by hand and through the API. It has not run yet." in text(client, f"task/{task.slug}/")
    a_trigger(owner, task, schedule="0 3 * * *", timezone="Asia/Shanghai")
    run = a_run(owner, task)
    at = clock.now() - timedelta(hours=2)
    Run.objects.filter(pk=run.pk).update(
        status="failed", started_at=at, finished_at=at, created_at=at, holds_place=False
    )
    html = text(client, f"task/{task.slug}/")
    assert "At 03:00, every day (Asia/Shanghai). Last run: Failed, 2 h ago. Next run in " in html
    # So far away that the first one stays the next whatever the hour is.
    later = clock.now() + timedelta(days=100)
    a_trigger(owner, task, schedule=f"0 4 {later.day} {later.month} *")
    assert "and 1 more trigger." in text(client, f"task/{task.slug}/script/")
    kept_fresh = client.get(f"{P}/task/{task.slug}/settings/", headers={"X-Part": "head"})
    assert kept_fresh.content.decode().startswith('<p class="ql-lead">At 03:00, every day (Asia/Shanghai)')
    assert kept_fresh.headers["ETag"]
    client.post(f"{P}/task/{task.slug}/disable/")
    html = text(client, f"task/{task.slug}/")
    assert "Disabled: it does not run until it is enabled." in html and "Next run" not in html


@pytest.mark.every_hour
def test_thirty_days_come_from_the_totals(owner: User, client: Client) -> None:
    task = a_task(owner)
    assert "The last 30 days" not in text(client, f"task/{task.slug}/")
    hour = clock.now().replace(minute=0, second=0, microsecond=0)
    for back, status, runs in (
        (0, "succeeded", 3),
        (0, "failed", 1),
        (26, "cancelled", 2),
        (24 * 40, "lost", 9),
    ):
        RunHourTotal.objects.create(
            project_id="default", task_id=task.pk, hour=hour - timedelta(hours=back), status=status, runs=runs,
            duration_ms=1,
        )  # fmt: skip
    html = text(client, f"task/{task.slug}/")
    assert "3 succeeded, 1 ended badly, 0 stopped" in html and "2 stopped" in html and "9 ended" not in html


def test_two_revisions_side_by_side_without_a_value_of_the_environment(owner: User, client: Client) -> None:
    task = a_task(owner, shell="one\ntwo\nthree\n", env={"TOKEN": "geheim-1", "GONE": "x"})
    given = grant(owner, "task.update")
    task = update_task(
        given, task.pk, 1, {"shell": "one\n2 <b>\nthree\n", "env": {"TOKEN": "geheim-2"}, "timeout_ms": 5000}
    )
    for query in ("a=1&b=2", "a=2&b=1", "a=1&b=2&mode=inline"):
        html = text(client, f"task/{task.slug}/revisions/compare/?{query}")
        assert "<del>two</del>" in html and "<ins>2 &lt;b&gt;</ins>" in html
        assert "geheim" not in html and "TOKEN" in html and "GONE" in html
    listed = text(client, f"task/{task.slug}/revisions/")
    assert "Script, Time limit in seconds, Environment variables" in listed
    for query in ("", "a=1", "a=1&b=x", "a=1&b=99999999999"):
        assert client.get(f"{P}/task/{task.slug}/revisions/compare/?{query}").status_code == 400, query
    assert client.get(f"{P}/task/{task.slug}/revisions/compare/?a=1&b=7").status_code == 404
    assert "They are the same." in text(client, f"task/{task.slug}/revisions/compare/?a=1&b=1")


def test_an_old_revision_is_used_again_by_who_may(owner: User, client: Client) -> None:
    task = a_task(owner, shell="one")
    update_task(grant(owner, "task.update"), task.pk, 1, {"shell": "two"})
    viewer = browser(member("viewer", "vic"))
    assert "/use/" not in viewer.get(f"{P}/task/{task.slug}/revisions/").content.decode()
    assert viewer.post(f"{P}/task/{task.slug}/revisions/1/use/").status_code == 403
    said = client.post(f"{P}/task/{task.slug}/revisions/1/use/", follow=True).content.decode()
    assert "Revision 3 is what revision 1 was." in said
    again = client.post(f"{P}/task/{task.slug}/revisions/1/use/", follow=True).content.decode()
    assert "nothing was changed" in again
    assert client.post(f"{P}/task/{task.slug}/revisions/9/use/").status_code == 404


def test_archiving_tells_what_waits_and_asks_about_what_runs(owner: User, client: Client) -> None:
    task = a_task(owner)
    running, *waiting = [a_run(owner, task) for _ in range(3)]
    Run.objects.filter(pk=running.pk).update(status="running")
    running.attempts.update(status="running")
    html = text(client, f"task/{task.slug}/archive/")
    assert "2 queued runs are taken out of the queue." in html and "1 run is going on" in html
    client.post(f"{P}/task/{task.slug}/archive/", {"live": "stop"})
    running.refresh_from_db()
    assert running.cancel_requested_at is not None and Task.objects.get().archived_at is not None
    assert {run.status for run in Run.objects.filter(pk__in=[run.pk for run in waiting])} == {"cancelled"}


def test_a_form_that_script_sends_is_told_where_to_go_and_refused_as_always(client: Client) -> None:
    by_script = {"headers": {"X-Form": "1"}}
    done = client.post(f"{P}/tasks/new/", form(), **by_script)  # type: ignore[arg-type]
    assert (done.status_code, done.headers["X-Location"]) == (204, f"{P}/task/back-up/")
    assert "Saved: Back up." in client.get(done.headers["X-Location"]).content.decode()
    wrong = client.post(f"{P}/tasks/new/", form(name=""), **by_script)  # type: ignore[arg-type]
    assert wrong.status_code == 400 and "Not saved:" in wrong.content.decode()
    client.logout()
    gone = client.post(f"{P}/tasks/new/", form(name="Lost?"), **by_script)  # type: ignore[arg-type]
    # Back to the form after signing in, where the browser still has what was typed.
    assert gone.headers["Location"].endswith("?next=%2Fpanel%2Fp%2Fdefault%2Ftasks%2Fnew%2F")


def test_a_stale_form_shows_the_difference(owner: User, client: Client) -> None:
    task = a_task(owner, shell="echo old")
    edit = f"{P}/task/{task.slug}/edit/"
    client.post(edit, form(slug=task.slug, version="1", shell="echo theirs", priority="5"))
    html = client.post(edit, form(slug=task.slug, version="1", shell="echo mine")).content.decode()
    assert "<del>echo theirs</del>" in html and "<ins>echo mine</ins>" in html
    assert "Put mine on top" in html and "<del>5</del>" in html
    assert queries.view(queries.find("default", task.slug)).document()["shell"] == "echo theirs"


def test_starters_fill_a_new_form(client: Client) -> None:
    for language, word in (("python", "import time"), ("node", "process.env"), ("shell", "df -h")):
        assert word in text(client, f"tasks/new/?from={language}")
    assert "import time" not in text(client, "tasks/new/?from=cobol").split("data-starters")[0]


def test_a_name_without_latin_letters_gets_a_short_name(client: Client) -> None:
    client.post(f"{P}/tasks/new/", form(name="备份数据库"))
    task: Any = Task.objects.get()
    assert task.slug.startswith("task-") and len(task.slug) == 9


def test_the_settings_tab_offers_what_the_role_may(owner: User, client: Client) -> None:
    task = a_task(owner)
    html = text(client, f"task/{task.slug}/settings/")
    for part in ("/disable/", "/pin/", "/empty-queue/", "/copy/", "/archive/"):
        assert part in html
    operator = browser(member("operator", "olga")).get(f"{P}/task/{task.slug}/settings/").content.decode()
    assert "/disable/" in operator and f"/{task.slug}/archive/" not in operator
    viewer = browser(member("viewer", "vic")).get(f"{P}/task/{task.slug}/settings/").content.decode()
    assert "<button" not in viewer.split('id="content"')[1].split("</main>")[0]
