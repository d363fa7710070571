"""Two `up` beside each other, as on two machines: one database, logs and keyring, and each its own node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.person import House
from tests.e2e.up_kit import Up, database, eventually

pytestmark = pytest.mark.e2e
if not os.environ.get("DATABASE_URL"):
    pytest.skip("one SQLite file belongs to one machine", allow_module_level=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, Up]]:
    with database() as extra:
        home = tmp_path_factory.mktemp("one") / "home"
        house = House.build(home, **extra)
        shared = {"QINGLONG_LOGS": str(home / "logs"), "QINGLONG_KEYRING": str(home / "keyring.json")}
        other = Up(
            tmp_path_factory.mktemp("two") / "home", QINGLONG_NODE_LABELS="gpu=a100", **shared, **extra
        )
        try:
            other.wait_ready()
            yield house, other
        finally:
            other.stop()
            house.up.stop()
            print(house.up.output[-3000:], other.output[-3000:])


def node_id(up: Up) -> str:
    return (up.home / "node" / "id").read_text().strip()


def took(house: House, run_id: str) -> str:
    """The node that ended it."""
    assert house.api.until(run_id)["status"] == "succeeded"
    worker = house.api.ok("GET", f"/runs/{run_id}/attempts")["items"][-1]["worker"]
    return str(worker).partition(":")[0]


def sessions(up: Up) -> list[Path]:
    """Worker places whose lock a process holds."""
    places = {path.stat().st_ino: path for path in (up.home / "node" / "workers").glob("*.lock")}
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    inodes = {int(fields[5].rpartition(":")[2]) for fields in held if fields[1] == "FLOCK"}
    return [path for inode, path in places.items() if inode in inodes]


def test_a_ring_that_reaches_the_wrong_node_delays_nobody(pair: tuple[House, Up]) -> None:
    """Neither has a session open, and the node that cannot take the run takes the only message."""
    house, other = pair
    task = house.api.make(shell="echo there", requires={"labels": {"gpu": "a100"}})
    assert not sessions(house.up) and not sessions(other)
    pusher = other.wait_ready().parts()["ql runs pusher"]
    os.kill(pusher, signal.SIGSTOP)
    try:
        run_id = house.api.start(task)
        eventually(lambda: sessions(house.up), "the wrong node to answer")
        assert house.api.run(run_id)["waiting_for"] == "labels"
    finally:
        os.kill(pusher, signal.SIGCONT)
    assert took(house, run_id) == node_id(other)
    assert house.api.log(run_id) == b"there\n"
    nodes = {item["id"]: item for item in house.api.ok("GET", "/nodes")["items"]}
    assert {pk: (item["state"], item["labels"]) for pk, item in nodes.items()} == {
        node_id(house.up): ("online", {}),
        node_id(other): ("online", {"gpu": "a100"}),
    }


def test_the_other_node_takes_over_from_a_drained_one(pair: tuple[House, Up]) -> None:
    house, other = pair
    house.api.ok("POST", f"/nodes/{node_id(house.up)}/drain")
    task = house.api.make(shell="true", concurrency="parallel", max_parallel=8)
    assert {took(house, house.api.start(task)) for _ in range(3)} == {node_id(other)}
    house.api.ok("POST", f"/nodes/{node_id(other)}/drain")
    waits = house.api.start(task)
    eventually(lambda: house.api.run(waits)["waiting_for"] == "worker", "nobody takes runs")
    house.api.ok("POST", f"/nodes/{node_id(house.up)}/resume")
    assert took(house, waits) == node_id(house.up)
    house.api.ok("POST", f"/nodes/{node_id(other)}/resume")
