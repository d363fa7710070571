"""Parts that stand still without dying: noticed and started anew, and what ran meanwhile is settled (issue 4)."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.e2e.person import House
from tests.e2e.up_kit import PARTS, eventually

RECOVERED_S = 15.0


def freeze(house: House, name: str) -> int:
    pid = house.up.parts()[name]
    os.kill(pid, signal.SIGSTOP)
    return pid


@pytest.fixture(autouse=True)
def ready(house: House) -> None:
    house.up.wait_ready()


def run_ends(house: House, shell: str, seconds: float) -> None:
    run = house.api.until(house.api.start(house.api.make(shell=shell)), seconds=seconds)
    assert (run["status"], run["attempt_count"]) == ("succeeded", 1), run


def test_a_frozen_session_whose_script_ends(house: House) -> None:
    run_id = house.api.start(house.api.make(shell="echo begin; sleep 1"))
    house.api.until(run_id, ["running"])
    began = time.monotonic()
    pid = freeze(house, "ql runs worker")
    run = house.api.until(run_id, seconds=RECOVERED_S + 15)
    took = time.monotonic() - began
    assert (run["status"], run["attempt_count"]) == ("succeeded", 1), run
    assert house.up.parts().get("ql runs worker") != pid
    print(f"settled after {took:.1f} s")
    assert took <= RECOVERED_S, house.up.output[-3000:]


def test_frozen_clusters_that_wait_for_work(house: House) -> None:
    """The session of an earlier test would take the run whatever the queue did, so it ends first."""
    house.up.stop()
    house.again()
    before = {name: freeze(house, name) for name in ("ql runs worker", "ql control push")}
    began = time.monotonic()
    run_ends(house, "true", RECOVERED_S + 15)
    for name, pid in before.items():
        eventually(lambda name=name, pid=pid: house.up.parts().get(name, pid) != pid, f"a new {name}")
    took = time.monotonic() - began
    print(f"recovered after {took:.1f} s")
    assert took <= RECOVERED_S, house.up.output[-3000:]


def test_a_frozen_scheduler(house: House) -> None:
    before = freeze(house, "ql scheduler")
    eventually(lambda: house.up.parts().get("ql scheduler", before) != before, "a new scheduler")


def test_what_merely_waits_is_left_alone(house: House) -> None:
    """Nothing to do, and a session that ended long ago: no ring is unanswered, and nothing is started anew."""
    before = house.up.parts()
    run_ends(house, "sleep 9", 30)
    assert {name: house.up.parts().get(name) for name in PARTS} == before
