"""`kill -9` of every part while scripts run: each script ends by itself and is settled once (lessons D7–D11)."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.person import House, processes_with
from tests.e2e.up_kit import eventually

# Exit code 7 can only come from the script's own end; the file tells how often it ran, whoever counts.
SCRIPT = """
echo "begin $QINGLONG_RUN_ID"
echo "$QINGLONG_RUN_ID" >> ran
sleep 2.5
echo end
exit 7
"""


class Running:
    """The same script twice, started by API and by panel, in the middle of its work."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.marker = f"marker-{secrets.token_hex(8)}"
        self.tasks = [door.make(shell=SCRIPT, env={"MARKER": self.marker}) for door in house.doors()]
        self.runs = [door.start(task) for door, task in zip(house.doors(), self.tasks, strict=True)]
        for run_id in self.runs:
            house.api.until(run_id, ["running"])
            eventually(lambda run_id=run_id: house.api.log(run_id), "its first line")

    def alive(self) -> bool:
        return bool(processes_with(self.marker))

    def check(self, seconds: float = 30) -> None:
        """Settled once, from the receipt, with all that the script said."""
        for run_id, task in zip(self.runs, self.tasks, strict=True):
            run = self.house.api.until(run_id, seconds=seconds)
            assert (run["status"], run["exit_code"]) == ("failed", 7), (run, self.house.up.output[-4000:])
            assert run["error_code"] == "EXECUTION_FAILED" and run["attempt_count"] == 1
            attempts = self.house.api.ok("GET", f"/runs/{run_id}/attempts")["items"]
            assert [(a["status"], a["exit_code"]) for a in attempts] == [("failed", 7)]
            self.check_events(run, self.house.api.events(run_id))
            head = self.house.api.call("HEAD", f"/runs/{run_id}/log")
            assert head.headers["X-Log-Complete"] == "true"
            assert self.house.api.log(run_id).decode() == f"begin {run_id}\nend\n"
            ran = self.house.up.home / "homes" / "default" / task["id"] / "ran"
            assert ran.read_text() == f"{run_id}\n"
        assert not self.alive()
        eventually(self.nothing_left, "receipts and folders are removed")

    def check_events(self, run: dict[str, Any], events: list[dict[str, Any]]) -> None:
        types = [event["type"] for event in events]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1)), types
        for once in ("attempt.failed", "run.failed", "attempt.running", "run.running", "attempt.starting"):
            assert types.count(once) == 1, types
        assert not {"attempt.lost", "run.lost", "attempt.succeeded"} & set(types), types

    def nothing_left(self) -> bool:
        node = self.house.up.home / "node"
        return not [*files(node / "receipts"), *files(node / "attempts")]


@pytest.fixture(autouse=True)
def told(house: House) -> Iterator[None]:
    """What `up` said belongs to a failure; the next test finds it running whatever happened."""
    if house.up.process.poll() is not None:
        house.again()
    begun = len(house.up.output)
    yield
    print(house.up.output[begun:][-6000:])


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def no_orphans(house: House) -> None:
    """All parts of a killed `up` but the launcher have ended too."""
    try:
        eventually(lambda: house.up.parts() == {}, "no orphans but the launcher")
    except AssertionError:
        raise AssertionError(f"{house.up.parts()}\n{house.up.output[-4000:]}") from None


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("name", ["ql runs worker", "ql runs"])
def test_g_a_killed_session_or_cluster(house: House, name: str) -> None:
    running = Running(house)
    worker, pid = house.up.parts()["ql runs worker"], house.up.parts()[name]
    kill(pid)
    # A session outlives neither its cluster nor itself: the next `up` would wait for it in vain.
    eventually(
        lambda: not Path(f"/proc/{worker}").exists(), "the old session ends", 25
    )  # idle, it would end after 30
    eventually(lambda: house.up.parts().get(name, pid) != pid, f"{name} again")
    assert running.alive()
    running.check()
    house.up.wait_ready()


def test_g_a_killed_launcher(house: House) -> None:
    running = Running(house)
    before = house.up.launcher()
    kill(before)
    eventually(lambda: house.up.launcher() not in (None, before), "launcher again")
    assert running.alive()
    running.check()
    run_id = house.api.start(house.api.make(shell="true"))
    assert house.api.until(run_id)["status"] == "succeeded"


def test_g_launcher_and_cluster_at_once(house: House) -> None:
    running = Running(house)
    kill(house.up.launcher())
    for name in ("ql runs worker", "ql runs"):
        kill(house.up.parts()[name])
    running.check()
    house.up.wait_ready()


@pytest.mark.parametrize("moment", ["while it runs", "after its end"])
def test_g_a_killed_up(house: House, moment: str) -> None:
    running = Running(house)
    house.up.process.kill()
    house.up.process.wait()
    no_orphans(house)
    assert running.alive()
    if moment == "after its end":
        eventually(lambda: not running.alive(), "the script ends by itself")
        eventually(lambda: len(files(house.up.home / "node" / "receipts")) == 2, "its receipts")
    house.again()
    running.check()


def test_g_everything_at_once_and_then_stopped(house: House) -> None:
    """What was adopted hears a stop too, and nothing of it lives on."""
    marker = f"marker-{secrets.token_hex(8)}"
    task = house.api.make(
        shell="trap '' TERM; echo up; sleep 60 & wait; sleep 60", env={"M": marker}, kill_grace_ms=300
    )
    run_id = house.api.start(task)
    eventually(lambda: house.api.call("GET", f"/runs/{run_id}/log").content == b"up\n", "the script")
    house.up.process.kill()
    kill(house.up.launcher())
    house.up.process.wait()
    no_orphans(house)
    house.again()
    assert processes_with(marker)
    begun = time.monotonic()
    assert house.api.call("POST", f"/runs/{run_id}/stop").status == 202
    assert house.api.until(run_id)["status"] == "cancelled"
    assert time.monotonic() - begun < 10
    assert processes_with(marker) == []


def test_g_a_stop_that_was_asked_for_while_nobody_listened(house: House) -> None:
    """The wish is on record; the session that comes next carries it out."""
    marker = f"marker-{secrets.token_hex(8)}"
    task = house.api.make(shell="echo up; sleep 60", env={"M": marker}, kill_grace_ms=300)
    run_id = house.api.start(task)
    eventually(lambda: house.api.call("GET", f"/runs/{run_id}/log").content == b"up\n", "the script")
    kill(house.up.parts()["ql runs"])
    assert house.api.call("POST", f"/runs/{run_id}/stop").status == 202
    assert house.api.until(run_id)["status"] == "cancelled"
    assert processes_with(marker) == []
    house.up.wait_ready()
