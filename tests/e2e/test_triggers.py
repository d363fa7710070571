"""Triggers of a running panel: schedules that run scripts, starts of `up`, webhooks, a killed scheduler."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.furnished import furnish
from tests.e2e.person import Api, House
from tests.e2e.up_kit import Up, database, eventually


def trigger(api: Api, task: dict[str, Any], **body: Any) -> dict[str, Any]:
    return dict(api.ok("POST", f"/projects/default/tasks/{task['slug']}/triggers", body))


def runs(api: Api, task: dict[str, Any], trigger_type: str) -> list[dict[str, Any]]:
    return list(
        api.ok("GET", f"/projects/default/runs?task={task['slug']}&trigger_type={trigger_type}")["items"]
    )


def test_a_schedule_of_seconds_runs_its_script(house: House) -> None:
    task = house.api.make(
        shell='cat "$QINGLONG_INPUT"; echo "$QINGLONG_TRIGGER"', concurrency="parallel", max_parallel=8
    )
    made = trigger(
        house.api, task, kind="cron", schedule="* * * * * *", timezone="Europe/Berlin", input={"n": 7}
    )
    found = eventually(
        lambda: [run for run in runs(house.api, task, "cron") if run["status"] == "succeeded"][2:],
        "three runs",
        30,
    )
    house.api.ok(
        "PATCH",
        f"/projects/default/tasks/{task['slug']}/triggers/{made['id']}",
        {"enabled": False},
        If_Match='"1"',
    )
    run = found[0]
    assert (run["trigger"], run["triggered_by"]) == (made["id"], {"type": "system", "id": "scheduler"})
    assert run["scheduled_for"].endswith(".000Z")
    assert house.api.log(run["id"]).split() == [b'{"n":7}cron']
    times = [item["scheduled_for"] for item in runs(house.api, task, "cron")]
    assert len(times) == len(set(times))
    span = house.api.ok("GET", f"/projects/default/tasks/{task['slug']}/due?limit=200")["items"]
    assert {item["status"] for item in span if item["run"]} <= {"ran", "waits"}
    assert any(item["status"] == "ran" for item in span)


def test_a_webhook_over_the_wire(house: House) -> None:
    task = house.api.make(shell='cat "$QINGLONG_INPUT"')
    made = trigger(house.api, task, kind="webhook")
    connection = http.client.HTTPConnection("127.0.0.1", house.up.port, timeout=30)
    connection.request(
        "POST", made["url"], json.dumps({"from": "outside"}), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert answer.status == 201
    assert house.api.until(body["run"]["id"])["status"] == "succeeded"
    assert b'"from":"outside"' in house.api.log(body["run"]["id"]).replace(b" ", b"")
    assert made["url"].rpartition("/")[2] not in house.up.output


def test_a_killed_scheduler_is_replaced_and_goes_on(house: House) -> None:
    task = house.api.make(command=["true"], concurrency="parallel", max_parallel=8)
    made = trigger(house.api, task, kind="interval", every_ms=1_000)
    for _ in range(2):
        before = len(runs(house.api, task, "interval"))
        os.kill(house.up.parts()["ql scheduler"], signal.SIGKILL)
        eventually(lambda n=before: len(runs(house.api, task, "interval")) > n + 3, "starts go on", 30)
    house.api.ok(
        "DELETE", f"/projects/default/tasks/{task['slug']}/triggers/{made['id']}", None, If_Match='"1"'
    )
    times = sorted(
        datetime.fromisoformat(item["scheduled_for"]) for item in runs(house.api, task, "interval")
    )
    steps = {later - earlier for earlier, later in pairwise(times)}
    assert steps == {timedelta(seconds=1)}, "nothing lost, nothing twice"
    assert times[0].tzinfo == UTC


@pytest.fixture
def extra() -> Iterator[dict[str, str]]:
    with database() as found:
        yield found


def test_boot_triggers_fire_once_per_start_of_up(tmp_path: Path, extra: dict[str, str]) -> None:
    home = tmp_path / "home"
    token = furnish(home, owned=True, **extra)
    up = Up(home, **extra).wait_ready()
    try:
        api = Api(up.port, token)
        task = api.make(command=["true"])
        trigger(api, task, kind="cron", schedule="@boot")
        os.kill(up.parts()["ql scheduler"], signal.SIGKILL)
        eventually(lambda: up.output.count("scheduler is ready") == 2, "a new scheduler")
        assert runs(api, task, "boot") == [], "another scheduler is no other start"
        assert up.terminate() == 0
        up = Up(home, **extra).wait_ready()
        api = Api(up.port, token)
        run = eventually(lambda: runs(api, task, "boot"), "the start")[0]
        assert api.until(run["id"])["status"] == "succeeded"
        os.kill(up.parts()["ql scheduler"], signal.SIGKILL)
        eventually(lambda: up.output.count("scheduler is ready") == 2, "a new scheduler")
        eventually(lambda: up.status("/readyz") == 200, "ready")
        assert len(runs(api, task, "boot")) == 1
    finally:
        up.stop()
