"""The run list, the run page, its log, stop and retry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.artifacts import facts
from apps.runs.models import Run, RunAttempt
from apps.runs.payloads import open_input
from apps.vault import keyring
from tests.panel.kit import a_run, a_task, browser
from tests.people import member

pytestmark = pytest.mark.django_db

RUNS = "/panel/p/default/runs/"


@pytest.fixture
def owner() -> User:
    return member("owner", "ann")


@pytest.fixture
def client(owner: User) -> Client:
    return browser(owner)


@pytest.fixture
def run(owner: User) -> Run:
    return a_run(owner, a_task(owner, concurrency="parallel", max_parallel=100))


def with_log(run: Run, content: bytes) -> None:
    """As if a worker had written this."""
    attempt = RunAttempt.objects.get(run=run)
    name = facts.artifact_id(str(run.pk), str(attempt.pk))
    paths = facts.log_paths(str(settings.LOG_ROOT), name)
    Path(paths.shard).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(settings.LOG_ROOT, 0o700)
    Path(paths.log).write_bytes(content)
    RunAttempt.objects.filter(pk=attempt.pk).update(log_artifact_id=name)


def test_the_address_is_the_filter(owner: User, client: Client, run: Run) -> None:
    other = a_run(owner, a_task(owner, "Other"))
    html = client.get(RUNS).content.decode()
    assert str(run.pk) in html and str(other.pk) in html
    html = client.get(f"{RUNS}?task={other.task.slug}").content.decode()
    assert str(run.pk) not in html and str(other.pk) in html
    assert "No run in this view" in client.get(f"{RUNS}?status=failed").content.decode()
    assert str(run.pk) in client.get(f"{RUNS}?status=queued&trigger=manual").content.decode()
    assert "No run in this view" in client.get(f"{RUNS}?trigger=cron").content.decode()
    assert "No task here is called “none-such”" in client.get(f"{RUNS}?task=none-such").content.decode()
    assert str(other.pk) in client.get(f"{RUNS}?task=Other").content.decode()
    assert client.get(f"{RUNS}?status=bogus&trigger=bogus").status_code == 200


def test_the_list_asks_the_same_number_of_queries_for_many(owner: User, client: Client, run: Run) -> None:
    with CaptureQueriesContext(connection) as few:
        client.get(RUNS)
    for _ in range(60):
        a_run(owner, run.task)
    with CaptureQueriesContext(connection) as many:
        html = client.get(RUNS).content.decode()
    assert len(many) == len(few) and html.count("<tr data-row=") == 50 and 'rel="next"' in html
    assert not any("COUNT(" in query["sql"] for query in many)


def test_the_page_tells_what_happened(client: Client, run: Run) -> None:
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert "Waits for a worker with a free slot." in html and "by hand · ann" in html
    assert "attempt.claimed" in html and 'data-live="0.7"' in html
    assert f'data-url="/api/v3/runs/{run.pk}/log"' in html


def test_a_part_is_the_part_and_unchanged_is_304(client: Client, run: Run) -> None:
    first = client.get(f"/panel/runs/{run.pk}/", headers={"X-Part": "1"})
    assert b"<html" not in first.content and b"csrfmiddlewaretoken" not in first.content
    tag = first.headers["ETag"]
    again = client.get(f"/panel/runs/{run.pk}/", headers={"X-Part": "1", "If-None-Match": tag})
    assert again.status_code == 304 and not again.content


def test_stopping_takes_a_note_into_the_history(client: Client, run: Run) -> None:
    asked = client.get(f"/panel/runs/{run.pk}/stop/")
    assert asked.status_code == 200 and Run.objects.get(pk=run.pk).cancel_requested_at is None
    client.post(f"/panel/runs/{run.pk}/stop/", {"note": "wrong <input>"})
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert (
        "Stopped by ann before it began." in html and "wrong &lt;input&gt;" in html and "by a person" in html
    )
    answer = client.post(f"/panel/runs/{run.pk}/stop/", follow=True)
    assert "It had ended already" in answer.content.decode()
    answer = client.post(f"/panel/runs/{run.pk}/stop/", {"note": "x" * 201}, follow=True)
    assert "invalid" in answer.content.decode()


def test_retrying_makes_a_new_run_that_names_the_first(client: Client, run: Run) -> None:
    refused = client.post(f"/panel/runs/{run.pk}/retry/", follow=True)
    assert "run_not_ended" in refused.content.decode()
    client.post(f"/panel/runs/{run.pk}/stop/")
    for _ in range(2):
        answer = client.post(f"/panel/runs/{run.pk}/retry/", {"once": "abcdefgh1234"})
    again = Run.objects.get(retry_of=run)
    assert answer.headers["Location"] == f"/panel/runs/{again.pk}/"
    assert f"/panel/runs/{run.pk}/" in client.get(f"/panel/runs/{again.pk}/").content.decode()


def test_the_log_is_read_page_by_page_without_script(client: Client, run: Run) -> None:
    lines = b"".join(b"line %06d <b>\n" % number for number in range(10_000))
    with_log(run, lines + b"\xff\xfe broken \x00\n")
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    shown = html[html.index("<pre>") : html.index("</pre>")]
    assert (
        "line 009999 &lt;b&gt;" in shown
        and "line 000000" not in shown
        and "\ufffd\ufffd broken \u2400" in shown
    )
    assert shown.split("\n")[0].startswith("<pre>line 0")
    before = int(html[html.index("?before=") + 8 :].split("#")[0])
    html = client.get(f"/panel/runs/{run.pk}/?before={before}").content.decode()
    shown = html[html.index("<pre>") : html.index("</pre>")]
    assert "line 009999" not in shown and "line 00" in shown


def test_downloads_are_the_bytes_as_written(client: Client, run: Run) -> None:
    content = os.urandom(600_000)
    with_log(run, content)
    answer: Any = client.get(f"/panel/runs/{run.pk}/log/", headers={"Accept-Encoding": "gzip"})
    assert b"".join(answer.streaming_content) == content
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert "attachment" in answer.headers["Content-Disposition"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_start_with_input_arguments_and_priority(owner: User, client: Client) -> None:
    task = a_task(owner, "With")
    address = f"/panel/p/default/task/{task.slug}/run-with/"
    for wrong in ({"input": "[1]"}, {"input": "{"}, {"priority": "9999"}, {"priority": "x"}, {"args": "a\0"}):
        answer = client.post(address, {"input": "", "args": "", "priority": ""} | wrong)
        assert answer.status_code == 400 and 'role="alert"' in answer.content.decode(), wrong
    assert not Run.objects.exists()
    keyring.ensure()
    answer = client.post(address, {"input": '{"tag": "v1"}', "args": "a b\r\n$c", "priority": "7"})
    run = Run.objects.get()
    assert answer.headers["Location"] == f"/panel/runs/{run.pk}/" and run.priority == 7
    given = open_input(run)
    assert (given.input, given.args) == ({"tag": "v1"}, ("a b", "$c"))


def test_looking_at_retry_changes_nothing(client: Client, run: Run) -> None:
    assert client.get(f"/panel/runs/{run.pk}/retry/").status_code == 404
    assert Run.objects.count() == 1


def test_a_viewer_reads_but_does_not_stop(run: Run) -> None:
    client = browser(member("viewer", "vic"))
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert "/stop/" not in html and "/retry/" not in html and "data-log-view" in html
    assert client.post(f"/panel/runs/{run.pk}/stop/").status_code == 403
    assert client.post(f"/panel/runs/{run.pk}/retry/").status_code == 403
