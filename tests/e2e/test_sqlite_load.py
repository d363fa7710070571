"""SQLite under load: web, two worker processes and twenty clients; nobody ever hears of a lock (lessons D24)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.load import drive
from tests.e2e.person import ENDED, House
from tests.e2e.up_kit import database, eventually

SECONDS = float(os.environ.get("QL_E2E_LOAD_SECONDS", "8"))
COMPLAINTS = ("locked", "Traceback", "could not be stored", "OperationalError", "Busy", "CRITICAL")


def test_no_lock_reaches_a_user_or_a_log(tmp_path: Path) -> None:
    with database() as extra:
        house = House.build(tmp_path / "home", "--workers", "2", **extra)
        try:
            figures = drive(house.up.port, house.api.token, SECONDS)
            assert figures.wrong == [], figures.wrong[:10]
            assert len(figures.runs) > 5 * SECONDS, (len(figures.runs), figures.statuses)

            def settled() -> bool:
                left = house.api.ok("GET", "/projects/default/runs?status=created,queued,dispatching,running")
                return left["items"] == []

            eventually(settled, "every run ended", 30 + 4 * SECONDS)
            for run_id in figures.runs[:: max(1, len(figures.runs) // 100)]:
                run = house.api.run(run_id)
                assert run["status"] in ENDED - {"lost"}, run
                if run["status"] == "succeeded":
                    assert house.api.log(run_id).decode() == f"{run_id}\n"
            said = [line for line in house.up.output.splitlines() if any(word in line for word in COMPLAINTS)]
            assert said == [], said[:20]
        finally:
            house.up.stop()


def test_two_worker_processes_share_the_work(tmp_path: Path) -> None:
    """A full first session leaves what it has no place for to the second."""
    if os.environ.get("DATABASE_URL"):
        pytest.skip("the same on both; SQLite is the harder one")
    house = House.build(tmp_path / "home", "--workers", "2", "--slots", "2")
    try:
        task = house.api.make(shell="sleep 8", concurrency="parallel", max_parallel=8)
        runs = [house.api.start(task) for _ in range(4)]
        for run_id in runs:
            house.api.until(run_id, ["running"], 10)
        workers = {house.api.ok("GET", f"/runs/{run_id}/attempts")["items"][0]["worker"] for run_id in runs}
        assert len(workers) == 2, workers
        for run_id in runs:
            assert house.api.until(run_id)["status"] == "succeeded"
    finally:
        house.up.stop()
