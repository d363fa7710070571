"""/livez and /readyz: codes for everybody, words for administrators, cheap for both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from unittest.mock import ANY

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core import clock, health, watchdogs
from apps.core.models import ControlJob


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(health, "_passed", set())
    monkeypatch.setattr(health, "_checks", dict(health._checks))
    health.register("keyring", lambda: None)
    health.forget()
    yield
    health.forget()


def ran(at: object) -> None:
    ControlJob.objects.update_or_create(name="job", defaults={"due_at": clock.now(), "last_started_at": at})


def test_alive_without_a_database(client: Client) -> None:
    answer = client.get("/livez")
    assert (answer.status_code, answer.content) == (200, b"ok\n")
    assert client.post("/livez").status_code == 405


@pytest.mark.django_db
def test_ready(client: Client) -> None:
    ran(clock.now())
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "failed": [], "warnings": ANY})
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.django_db
def test_a_silent_scheduler_by_code_only(client: Client) -> None:
    ran(clock.now() - timedelta(minutes=4))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (
        503,
        {"status": "failing", "failed": ["scheduler"], "warnings": ANY},
    )


@pytest.mark.django_db
def test_an_administrator_reads_why(client: Client) -> None:
    ran(clock.now() - timedelta(minutes=4))
    user = get_user_model()(username="ada", is_superuser=True)

    class Request:
        method = "GET"

    Request.user = user
    assert "details" in health.readyz(Request()).content.decode()  # type: ignore[arg-type]
    user.is_superuser = False
    health.forget()
    assert "details" not in health.readyz(Request()).content.decode()  # type: ignore[arg-type]


@pytest.mark.django_db
def test_a_round_of_checks_asks_each_question_once() -> None:
    """Whoever opens the dashboard first within a few seconds waits for it."""
    ran(clock.now())
    health.problems()
    with CaptureQueriesContext(connection) as seen:
        health.problems()
    asked = [re.sub(r"'[^']*'", "?", query["sql"]) for query in seen]
    assert len(asked) == len(set(asked)) <= 15


def test_what_checks_share_is_worked_out_once_for_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[int] = []

    @health.shared
    def work() -> int:
        worked.append(1)
        if len(worked) == 1:
            raise OSError
        return len(worked)

    checks = {f"check{n}": health._Registered(lambda: str(work()), False, True) for n in range(3)}
    monkeypatch.setattr(
        health, "_checks", {"database": health._Registered(lambda: None, False, True), **checks}
    )
    found = [str(problem.sentence) for problem in health.problems()]
    assert "OSError" in found[0] and found[1:] == ["2", "2"], "what failed is not kept"
    assert (work(), work()) == (3, 4), "outside of a round nothing is kept"


@pytest.mark.django_db
def test_without_a_database_nothing_else_is_asked(client: Client) -> None:
    asked = []

    def broken() -> str | None:
        raise OperationalError("password hunter2")

    health.register("database", broken)
    health.register("keyring", lambda: asked.append(1))
    answer = client.get("/readyz")
    assert answer.json() == {"status": "failing", "failed": ["database"], "warnings": ANY}
    assert not asked and b"hunter2" not in answer.content


@pytest.mark.django_db
def test_asking_often_asks_the_database_once(client: Client, django_assert_num_queries) -> None:
    ran(clock.now())
    client.get("/readyz")
    with django_assert_num_queries(0):
        client.get("/readyz")


@pytest.mark.django_db
def test_full_disks_and_missing_migrations_are_seen(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(clock.now())
    monkeypatch.setattr(watchdogs, "FREE_BYTES_MIN", 2**62)
    health.register("migrations", lambda: "1 migrations are not applied", lasting=True)
    assert client.get("/readyz").json()["failed"] == ["disk", "migrations"]


@pytest.mark.django_db
def test_every_part_of_the_contract_is_registered() -> None:
    assert {"database", "migrations", "schema", "keyring", "scheduler", "oldest_run", "disk"} <= set(
        health._checks
    )
