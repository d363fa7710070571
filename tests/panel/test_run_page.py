"""What the page of a run tells: its story, its end and a next step, what it was given and left; and the audit log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from apps.access.models import User
from apps.audit.models import AuditEntry
from apps.panel import drawings, terminal, timeline, words
from apps.runs.models import Run, RunAttempt, RunEvent
from apps.vault import keyring
from tests.panel.kit import a_run, a_task, browser
from tests.panel.test_runs import with_log
from tests.people import member
from tests.runs import kit

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> User:
    return member("owner", "ann")


@pytest.fixture
def client(owner: User) -> Client:
    return browser(owner)


def failed(run: Run, code: int = 1) -> None:
    RunAttempt.objects.filter(run=run).update(status="failed", exit_code=code, started_at=run.created_at)
    Run.objects.filter(pk=run.pk).update(
        status="failed", started_at=run.created_at, finished_at=run.created_at, holds_place=False
    )


def page(client: Client, run: Run, **headers: str) -> str:
    return client.get(f"/panel/runs/{run.pk}/", headers=headers).content.decode()


def test_a_bad_end_says_the_last_line_and_what_to_try(owner: User, client: Client) -> None:
    run = a_run(owner, a_task(owner))
    with_log(run, b"one\n\x1b[31mModuleNotFoundError: No module named 'requests'\x1b[0m\n\n")
    failed(run)
    for part in ({}, {"X-Part": "1"}):
        html = page(client, run, **part)
        assert "ModuleNotFoundError: No module named &#x27;requests&#x27;" in html and "\x1b" not in html
        assert "Python does not find the module requests" in html
        assert "Exit code 1 after" in html
    quiet = a_run(owner, a_task(owner, "Other"))
    failed(quiet, 127)
    assert "127 means: a command was not found" in page(client, quiet)


def test_the_last_words_are_for_those_who_may_read_the_log(owner: User, monkeypatch: Any) -> None:
    run = a_run(owner, a_task(owner))
    with_log(run, b"secret of the log\n")
    failed(run)
    from apps.panel.visitors import Visitor

    real = Visitor.permissions
    monkeypatch.setattr(Visitor, "permissions", lambda self, p: real(self, p) - {"artifact.read"})
    html = page(browser(owner), run)
    assert "secret of the log" not in html and "You may see this run, not its log." in html
    assert "panel-io" not in html


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", ""),
        (b"a\nb\n\n  \n", "b"),
        (b"\x1b[1mbold\x1b[0m\r\n", "bold"),
        (b"10%\r90%\r100%", "100%"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"ok\n" + b"x" * 500, "x" * 199 + "…"),
        ("bidi \u202e end".encode(), "bidi ‹U+202E› end"),
    ],
)
def test_the_last_line_is_plain_text(content: bytes, line: str) -> None:
    assert terminal.last_line(content) == line


def test_what_it_was_given_is_shown_and_taken_along(owner: User, client: Client) -> None:
    keyring.ensure()
    task = a_task(owner)
    run = a_run(owner, task, input={"tag": "v1", "<b>": 1}, args=["a b", "$c"])
    html = page(client, run)
    assert "&quot;tag&quot;: &quot;v1&quot;" in html and "<code>$c</code>" in html
    form = client.get(f"/panel/p/default/task/{task.slug}/run-with/?from={run.pk}").content.decode()
    assert "&quot;tag&quot;: &quot;v1&quot;" in form and "a b\n$c" in form
    other = a_task(owner, "Other")
    form = client.get(f"/panel/p/default/task/{other.slug}/run-with/?from={run.pk}").content.decode()
    assert "&quot;v1&quot;" not in form
    assert client.get(f"/panel/p/default/task/{task.slug}/run-with/?from=x").status_code == 200


def test_a_waiting_run_names_the_one_in_its_way(owner: User, client: Client) -> None:
    task = a_task(owner)
    first, second = a_run(owner, task), a_run(owner, task)
    html = page(client, second)
    assert "Waits until an earlier run of this task has ended." in html
    assert f'href="/panel/runs/{first.pk}/"' in html


def test_steps_that_belong_together_are_one_sentence_with_the_facts_behind() -> None:
    task = kit.task()
    run = kit.run_of(task)
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    kit.finish(fence, lease, 3)
    run.refresh_from_db()
    events = list(RunEvent.objects.filter(run=run).order_by("sequence"))
    with translation.override("en"):
        steps = timeline.tell(run, events, {})
    assert [step.look for step in steps] == ["queued", "dispatching", "running", "failed"]
    assert sum(len(step.events) for step in steps) == len(events)
    assert "exit code 3" in steps[-1].notes


def test_the_proof_of_a_stop_is_told() -> None:
    with translation.override("en"):
        said = timeline.stop_proof(
            {"stopped": {"processes": 3, "took_ms": 12, "killed": False, "escaped": []}}
        )
        assert said == ["3 processes were told to end", "KILL was not needed", "all gone after 12 ms"]
        said = timeline.stop_proof(
            {"stopped": {"processes": 1, "took_ms": 5, "killed": True, "escaped": [{"pid": 7}, {"pid": 8}]}}
        )
        assert said == ["1 process was told to end", "KILL was needed", "still there: process 7, 8"]
        assert timeline.stop_proof({}) == timeline.stop_proof({"stopped": "x"}) == []


def test_bars_say_in_words_what_they_show() -> None:
    with translation.override("en"):
        svg = str(drawings.history(["succeeded", "failed", "lost", "succeeded", "timed_out", "cancelled"]))
        assert 'aria-label="6 runs: 2 Succeeded, 1 Failed, 1 Lost, 1 Timed out, 1 Stopped"' in svg
        assert "style" not in svg and svg.count("<path") == 5
        bar = str(drawings.pace(2000, 1000, "failed", wide=False))
        assert 'aria-label="2 s, usually 1 s"' in bar and 'width="100" height="6" rx="2"/>' in bar
        assert drawings.pace(2000, None, "failed", wide=False) == ""


def test_queries_of_the_page_do_not_grow_with_events(owner: User, client: Client) -> None:
    run = a_run(owner, a_task(owner))
    with CaptureQueriesContext(connection) as few:
        page(client, run)
    client.post(f"/panel/runs/{run.pk}/stop/", {"note": "x"})
    with CaptureQueriesContext(connection) as many:
        page(client, run)
    assert len(many) <= len(few)


def test_the_audit_log_speaks_and_its_chain_is_checked(owner: User, client: Client) -> None:
    task = a_task(owner)
    run = a_run(owner, task)
    html = client.get("/panel/p/default/audit/").content.decode()
    assert "made a task" in html and "started a run" in html and f"/panel/runs/{run.pk}/" in html
    only = client.get("/panel/p/default/audit/?act=task.created").content.decode()
    assert f"/panel/runs/{run.pk}/" not in only and "Back up" in only
    said = client.post("/panel/p/default/audit/check/", follow=True).content.decode()
    assert "The chain is whole: checked to #" in said
    assert browser(member("viewer", "vic")).post("/panel/p/default/audit/check/").status_code == 403
    assert client.get("/panel/p/default/audit/check/").status_code == 404
    assert AuditEntry.objects.filter(scope="default").exists()


def test_the_palette_finds_by_the_rights_of_the_moment(owner: User, client: Client) -> None:
    task = a_task(owner, "Zebra feeder")
    run = a_run(owner, task)
    Run.objects.filter(pk=run.pk).update(status="running")
    html = client.get("/panel/go/?q=zebra feed", headers={"X-Part": "1"}).content.decode()
    for piece in (f"/task/{task.slug}/run/", f"/panel/runs/{run.pk}/stop/", f"/task/{task.slug}/"):
        assert piece in html, piece
    assert "<html" not in html and "Dashboard" not in html
    viewer = browser(member("viewer", "vic"))
    html = viewer.get("/panel/go/?q=zebra", headers={"X-Part": "1"}).content.decode()
    assert f"/task/{task.slug}/" in html and "/run/" not in html and "/stop/" not in html
    for number in range(20):
        a_task(owner, f"Zebra {number}")
    html = client.get("/panel/go/?q=zebra", headers={"X-Part": "1"}).content.decode()
    assert html.count("/run/") == 8
    assert client.get("/panel/go/?q=%25_%27").status_code == 200


def test_icons_named_by_templates_are_in_the_sprite() -> None:
    root = Path(settings.BASE_DIR) / "templates"
    sprite = set(re.findall(r'<symbol id="i-([\w]+)"', (root / "panel/_icons.html").read_text()))
    used = {
        name
        for file in root.rglob("*.html")
        for name in re.findall(r"""{% icon ["']([\w]+)["'] %}|#i-([\w]+)""", file.read_text())
        for name in name
        if name
    }
    used |= {"dashboard", "tasks", "runs", "skips", "team", "audit", "project", "person", "workers"}
    assert used <= sprite, used - sprite


def test_a_run_that_printed_secrets_says_whose_and_offers_to_replace_them(
    owner: User, client: Client
) -> None:
    run = a_run(owner, a_task(owner))
    assert "printed" not in page(client, run)
    Run.objects.filter(pk=run.pk).update(secrets_printed="api-token\npg & co")
    html = page(client, run)
    assert "This run printed 2 secrets." in html
    assert "<code>pg &amp; co</code>" in html
    assert 'href="/panel/p/default/secrets/pg%20&amp;%20co/"' in html
    assert "This run printed 2 secrets." in page(client, run, **{"X-Part": "1"})
    viewer = page(browser(member("viewer", "vera")), run)
    assert "<code>api-token</code>" in viewer
    assert "/secrets/" not in viewer


def test_the_timeline_names_the_secrets_that_were_printed() -> None:
    sentence, notes = words.event("attempt.secrets_printed", {"attempt": 1, "secrets": ["a", "b"]})
    assert (sentence, notes) == ("Secrets were printed, and masked", ["a, b"])
