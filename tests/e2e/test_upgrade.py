"""`up` replaced by another `up` while scripts run: it ends in seconds, they go on, and each is settled once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.person import House, manage
from tests.e2e.up_kit import database, eventually

pytestmark = pytest.mark.e2e

SCRIPT = 'echo "$QINGLONG_RUN_ID" >> {ran}; while [ ! -e {gate} ]; do sleep 0.05; done; echo said'


@pytest.mark.parametrize("launcher_stays", [False, True])
def test_scripts_outlive_the_old_one_and_are_taken_over_by_the_new(
    tmp_path: Path, launcher_stays: bool
) -> None:
    """Ordered, the old launcher ends with its `up`; after a crash it is there still when the new one begins."""
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    with database() as extra:
        house = House.build(tmp_path / "home", **extra)
        api, old = house.api, house.up
        try:
            task = api.make(shell=SCRIPT.format(gate=gate, ran=ran), concurrency="parallel", max_parallel=8)
            ends_between, *go_on = runs = [api.start(task) for _ in range(4)]
            for run_id in runs:
                api.until(run_id, {"running"})
            eventually(lambda: len(ran.read_text().split()) == 4, "the scripts")
            old_launcher = old.launcher()
            begun = time.monotonic()
            if launcher_stays:
                old.process.kill()
                old.process.wait()
            else:
                assert old.terminate() == 0, old.output
            took = time.monotonic() - begun
            assert took < 10, took
            eventually(lambda: old.parts() == {}, "the old one is gone")
            assert (old.launcher() is not None) == launcher_stays
            kill_one(tmp_path / "home", ends_between)
            house.again()
            assert house.up.launcher() not in (None, old_launcher)
            fresh = api.start(task)
            assert api.until(fresh, {"running"})["attempt_count"] == 1
            for run_id in go_on:
                eventually(lambda run_id=run_id: adopted(api, run_id) == 1, "adoption")
                assert api.run(run_id)["status"] == "running"
            gate.touch()
            for run_id in [*go_on, fresh]:
                ended = api.until(run_id)
                assert (ended["status"], ended["exit_code"], ended["attempt_count"]) == ("succeeded", 0, 1)
                assert api.log(run_id) == b"said\n"
            # What ended while nobody was there is settled from its receipt.
            ended = api.until(ends_between)
            assert (ended["status"], ended["exit_code"]) == ("failed", 143)
            for run_id in [*runs, fresh]:
                types = [event["type"] for event in api.events(run_id)]
                assert sum(types.count(f"run.{end}") for end in ("succeeded", "failed", "lost")) == 1, types
            assert sorted(ran.read_text().split()) == sorted([*runs, fresh])
        finally:
            gate.touch()
            old.stop()
            house.up.stop()


def kill_one(home: Path, run_id: str) -> None:
    """Ends the script of a run, and of it alone; its shim publishes the receipt."""
    mark = f"QINGLONG_RUN_ID={run_id}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGTERM)
            except OSError:
                continue
    receipts = home / "node" / "receipts"
    eventually(lambda: any(receipts.glob("*/*.json")), "its receipt")


def adopted(api: Any, run_id: str) -> int:
    return [event["type"] for event in api.events(run_id)].count("run.dispatch_adopted")


def test_a_drained_node_stays_drained_when_up_starts_anew(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with database() as extra:
        house = House.build(tmp_path / "home", **extra)
        api = house.api
        try:
            going = api.start(api.make(shell=f"while [ ! -e {gate} ]; do sleep 0.05; done"))
            api.until(going, {"running"})
            told = manage(house.up.home, "drain", **extra)
            assert "takes no new runs; 1 still on this node" in told
            waits = api.start(api.make(shell="true"))
            (node,) = api.ok("GET", "/nodes")["items"]
            assert (node["state"], node["running"]) == ("draining", 1)
            assert house.up.terminate() == 0
            house.again()
            eventually(lambda: adopted(api, going) == 1, "adoption")
            gate.touch()
            assert api.until(going)["status"] == "succeeded"
            eventually(lambda: api.ok("GET", "/nodes")["items"][0]["state"] == "drained", "drained")
            found = api.run(waits)
            assert (found["status"], found["waiting_for"]) == ("queued", "worker")
            assert "0 still on this node" in manage(house.up.home, "drain", "--wait", "5", **extra)
            assert "drained" in manage(house.up.home, "workers", **extra)
            resumed = api.ok("POST", f"/nodes/{node['id']}/resume")
            assert (resumed["state"], resumed["drain_requested_at"]) == ("online", None)
            assert api.until(waits)["status"] == "succeeded"
        finally:
            gate.touch()
            house.up.stop()
