"""Sessions killed at every step of a start and an end, and at random: no run is lost, none runs twice.

Nothing in the product knows of this: the steps are seen from outside, by the files a start leaves behind.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.chaos.node import Node
from tests.e2e.person import ENDED, House
from tests.e2e.up_kit import PATIENCE_S, database, eventually

pytestmark = pytest.mark.e2e

SECONDS = float(os.environ.get("QL_CHAOS_SECONDS", "12"))
# One line per start of a script; appends this short never mix.
SCRIPT = 'echo "$QINGLONG_RUN_ID" >> ../ran; sleep {seconds}; echo said'


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with database() as extra:
        house = House.build(
            tmp_path_factory.mktemp("chaos") / "home", "--workers", "2", "--slots", "4", **extra
        )
        try:
            yield house
        finally:
            house.up.stop()
            print(house.up.output[-8000:])


def kill_sessions(node: Node, pids: list[int] | None = None) -> int:
    killed = 0
    for pid in node.sessions() if pids is None else pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def account(node: Node, runs: list[str], seconds: float = 60) -> None:
    """Every run ended well, once, with a whole history, and nothing of it is left on the node.

    A session killed after `starting` was on record and before it said `go` costs an attempt, never a run: that
    script had not begun.
    """
    api = node.house.api
    for run_id in runs:
        run = api.until(run_id, ENDED - {"lost"}, seconds=seconds)
        events = api.events(run_id)
        types = [event["type"] for event in events]
        assert [event["sequence"] for event in events] == list(range(1, run["version"] + 1)), (run, types)
        assert (run["status"], run["exit_code"]) == ("succeeded", 0), (run, types)
        for once in ("attempt.running", "run.running", "attempt.succeeded", "run.succeeded"):
            assert types.count(once) == 1, types
        *before, _last = api.ok("GET", f"/runs/{run_id}/attempts")["items"]
        assert {(item["status"], item["error_code"]) for item in before} <= {
            ("lost", "RECOVERY_NEVER_STARTED")
        }
        assert run["attempt_count"] == types.count("attempt.starting") == len(before) + 1
        assert api.log(run_id) == b"said\n"
    counted = Counter(node.ran.read_text().split())
    assert {run_id: counted[run_id] for run_id in runs} == dict.fromkeys(runs, 1)

    def clean() -> bool:
        return not node.folders() and not node.ended() and not node.claimed()

    try:
        # A session that lived on, when the one beside it was killed, tidies up within a minute.
        eventually(clean, "nothing left", 90)
    except AssertionError:
        folders = [(path, oct(path.stat().st_mode), list(path.iterdir())) for path in node.folders()]
        raise AssertionError(f"{folders} {node.ended()} {node.claimed()}") from None
    assert node.query("SELECT 1 FROM completion_receipt_journals WHERE state <> 'pending'") == []


# Lasts a millisecond: often nobody sees it from outside.
BRIEF = "after it is settled, before its receipt goes"
MOMENTS: dict[str, Callable[[Node], Any]] = {
    "after the claim": Node.claimed,
    "a shim waits for go": Node.prepared,
    "starting is on record": Node.starting,
    "after go": Node.going,
    "after its end, before it is settled": Node.ended,
    BRIEF: Node.settled,
}
ROUNDS = 3


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_session_killed(house: House, moment: str) -> None:
    node = Node(house)
    house.up.wait_ready()
    task = house.api.make(shell=SCRIPT.format(seconds=0.3), concurrency="parallel", max_parallel=8)
    seen, runs, hits = MOMENTS[moment], [], 0
    given_up = time.monotonic() + PATIENCE_S
    for number in count(1):
        warm = house.api.start(task)
        account(node, [warm])
        pids = node.sessions()
        starts = threading.Thread(target=lambda: runs.extend(house.api.start(task) for _ in range(2)))
        starts.start()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            if seen(node):
                hits += kill_sessions(node, pids)
                break
        starts.join()
        account(node, runs)
        # A busy machine passes over a moment now and then.
        if number >= ROUNDS and (hits or moment == BRIEF or time.monotonic() > given_up):
            break
    assert hits or moment == BRIEF, "the moment was never seen"


def test_sessions_killed_at_random(house: House) -> None:
    node = Node(house)
    house.up.wait_ready()
    dice = random.Random(7)
    tasks = [
        house.api.make(shell=SCRIPT.format(seconds=seconds), concurrency="parallel", max_parallel=8)
        for seconds in (0, 0.05, 0.15, 0.3)
    ]
    runs: list[str] = []
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            runs.append(house.api.start(dice.choice(tasks)))
            time.sleep(dice.uniform(0, 0.25))

    feeder = threading.Thread(target=feed)
    feeder.start()
    killed, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(dice.uniform(0.1, 0.7))
        killed += kill_sessions(node)
    stop.set()
    feeder.join()
    assert killed >= SECONDS / 4 and len(runs) > SECONDS, (killed, len(runs))
    account(node, runs, 90)


def test_stops_while_sessions_are_killed(house: House) -> None:
    """A wish to stop is neither lost nor carried out twice, whoever carries it."""
    node = Node(house)
    house.up.wait_ready()
    task = house.api.make(shell="sleep 30", concurrency="parallel", max_parallel=8, kill_grace_ms=200)
    dice = random.Random(11)
    runs = []
    for _ in range(8):
        run_id = house.api.start(task)
        runs.append(run_id)
        time.sleep(dice.uniform(0, 0.3))
        if dice.random() < 0.6:
            kill_sessions(node)
        assert house.api.call("POST", f"/runs/{run_id}/stop").status == 202
        if dice.random() < 0.6:
            kill_sessions(node)
    for run_id in runs:
        run = house.api.until(run_id, ENDED, 60)
        types = [event["type"] for event in house.api.events(run_id)]
        assert run["status"] == "cancelled", (run, types)
        assert types.count("run.cancelled") == 1 and types.count("run.cancel_requested") <= 1, types
