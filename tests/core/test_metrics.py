"""/metrics: off by default, for the holder of its token, cheap, and about nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from apps.core import clock, control, health, metrics
from apps.dispatch.services import workers
from qinglong import environment
from tests.runs import kit

TOKEN = "scrape-me-0123456789"
HEAD = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def _fresh(settings: Any) -> Iterator[None]:
    settings.METRICS_TOKEN = TOKEN
    health.forget()
    yield
    health.forget()


def figures(client: Client) -> dict[str, dict[str, float]]:
    answer = client.get("/metrics", headers=HEAD)
    assert answer.status_code == 200 and answer["Cache-Control"] == "no-store", answer.content
    families = text_string_to_metric_families(answer.content.decode())
    return {
        family.name: {next(iter(one.labels.values()), ""): one.value for one in family.samples}
        for family in families
    }


@pytest.mark.django_db
def test_off_without_a_token_and_closed_without_the_right_one(client: Client, settings: Any) -> None:
    for wrong in (
        {},
        {"Authorization": "Bearer nope"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer ä"},
    ):
        answer = client.get("/metrics", headers=wrong)
        assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
        assert answer["WWW-Authenticate"] == "Bearer" and TOKEN not in answer.content.decode()
    assert client.post("/metrics", headers=HEAD).status_code == 405
    settings.METRICS_TOKEN = None
    for sent in ({}, HEAD, {"Authorization": "Bearer None"}):
        assert client.get("/metrics", headers=sent).status_code == 404


@pytest.mark.parametrize("token", ["short", "x" * 257, "with a space and more", "ümläute-0123456789"])
def test_a_token_that_cannot_be_one_is_refused(token: str, tmp_path: Any) -> None:
    with pytest.raises(environment.ConfigurationError) as refused:
        environment.read({"QINGLONG_METRICS_TOKEN": token}, tmp_path)
    assert refused.value.code == "metrics_token_invalid" and token not in str(refused.value)


@pytest.mark.django_db
def test_what_is_told(client: Client) -> None:
    control.enrol(clock.now())
    workers.register("0" * 32, 1, 8, ["runs"])
    kit.run_of(kit.task())
    found = figures(client)
    assert found["qinglong_problem"]["disk"] == 0 and found["qinglong_problem"]["scheduler"] == 1
    assert set(found["qinglong_problem"]) == set(health.codes())
    assert found["qinglong_oldest_undispatched_run_seconds"][""] >= 0
    assert found["qinglong_schedule_late_seconds"] == {"": 0}
    assert found["qinglong_workers_alive"] == {"": 1} and found["qinglong_slots_free"] == {"": 8}
    assert set(found["qinglong_control_job_late_seconds"]) == {job.name for job in control.jobs()}
    assert found["qinglong_disk_free_bytes"]["home"] > 0
    assert set(found["qinglong_runs_ended_day"]) == {"succeeded", "failed", "cancelled", "timed_out", "lost"}


@pytest.mark.django_db
def test_the_same_queries_for_one_run_and_many_and_none_counts_runs(client: Client) -> None:
    control.enrol(clock.now())
    task = kit.task(concurrency="parallel", max_parallel=50)
    figures(client)

    def asked() -> list[str]:
        with CaptureQueriesContext(connection) as caught:
            figures(client)
        return [query["sql"] for query in caught.captured_queries]

    health.forget()
    few = asked()
    for number in range(5):
        kit.run_of(task)
        workers.register("0" * 32, number + 1, 8, ["runs"])
    health.forget()
    many = asked()
    assert len(few) == len(many) <= 32, many
    assert not [sql for sql in many if "COUNT" in sql and '"runs"' in sql]


@pytest.mark.django_db
def test_no_name_of_anybody_and_no_secret(client: Client) -> None:
    control.enrol(clock.now())
    task = kit.task("Secret plan")
    kit.run_of(task)
    text = client.get("/metrics", headers=HEAD).content.decode()
    for name in (task.name, task.slug, str(task.pk), "default", TOKEN):
        assert name not in text


@pytest.mark.django_db
def test_without_a_database_the_problem_alone_is_told(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OperationalError("hunter2")

    monkeypatch.setattr(health, "_checks", dict(health._checks))
    health.register("database", broken)
    found = figures(client)
    assert list(found) == ["qinglong_problem"] and found["qinglong_problem"]["database"] == 1


@pytest.mark.django_db
def test_a_source_that_fails_leaves_the_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[metrics.Gauge]:
        raise OperationalError("hunter2")

    monkeypatch.setattr(metrics, "_sources", {"broken": broken, **metrics._sources})
    assert "qinglong_slots" in figures(client)
