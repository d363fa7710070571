"""Draining and resuming nodes and worker places; nodes on record; clocks that are off."""

from __future__ import annotations

import time as real_time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from apps.audit.models import AuditEntry
from apps.core import clock, db, node
from apps.dispatch import presence, queries
from apps.dispatch.errors import NodeDraining, NodeNotFound, WorkerNotFound
from apps.dispatch.fence import WorkerFence
from apps.dispatch.health import silent_workers
from apps.dispatch.models import Node, Worker
from apps.dispatch.services import draining, expiry, nodes, workers
from tests.people import api, member
from tests.runs import kit
from tests.runs.kit import race

pytestmark = pytest.mark.django_db
ACTOR = ("user", "u")
OTHER = "b" * 32


def drain_node(node_id: str = kit.NODE, *, wanted: bool = True) -> bool:
    return draining.set_node(wanted, node_id, actor=ACTOR, origin="tests")


def drain_worker(worker_id: str, *, wanted: bool = True) -> bool:
    return draining.set_worker(wanted, worker_id, actor=ACTOR, origin="tests")


def states() -> dict[str, str]:
    return {
        f"{pk[0]}:{pk.rpartition(':')[2]}": status
        for pk, status in Worker.objects.values_list("pk", "status")
    }


def acts() -> list[str]:
    return list(
        AuditEntry.objects.filter(action__regex="drained|resumed")
        .order_by("sequence")
        .values_list("action", flat=True)
    )


@pytest.mark.django_db(transaction=True)
def test_the_first_sessions_of_a_node_register_at_once(seeded: None) -> None:
    for number in range(5):
        made = race(
            [lambda node=f"{number:032x}", place=place: kit.worker(place, node=node) for place in range(4)]
        )
        assert not [one for one in made if isinstance(one, BaseException)], made
    assert (Node.objects.count(), Worker.objects.count()) == (5, 20)


def test_a_drained_node_stays_so_whatever_registers(time: Any) -> None:
    kit.worker(1)
    kit.worker(1, node=OTHER)
    assert drain_node()
    since = Node.objects.get(pk=kit.NODE).drain_requested_at
    kit.worker(1)
    kit.worker(2)
    assert states() == {"a:1": "draining", "a:2": "draining", "b:1": "online"}
    time.advance(60_000)
    assert not drain_node(), "said again it changes nothing"
    assert Node.objects.get(pk=kit.NODE).drain_requested_at == since
    assert drain_node(wanted=False) and not drain_node(wanted=False)
    assert states() == {"a:1": "online", "a:2": "online", "b:1": "online"}
    assert acts() == ["node.drained", "node.resumed"]


def test_a_place_is_drained_by_itself_and_not_by_its_neighbours(time: Any) -> None:
    one, _two = kit.worker(1), kit.worker(2)
    assert drain_worker(one.worker_id) and not drain_worker(one.worker_id)
    kit.worker(1)
    kit.worker(3)
    assert states() == {"a:1": "draining", "a:2": "online", "a:3": "online"}
    drain_node()
    drain_node(wanted=False)
    assert states() == {"a:1": "draining", "a:2": "online", "a:3": "online"}, (
        "its own drain outlives the node's"
    )
    drain_node()
    with pytest.raises(NodeDraining):
        drain_worker(one.worker_id, wanted=False)
    drain_node(wanted=False)
    assert drain_worker(one.worker_id, wanted=False)
    assert states()["a:1"] == "online"
    assert acts().count("worker.drained") == acts().count("worker.resumed") == 1


def test_what_is_not_there(time: Any) -> None:
    with pytest.raises(NodeNotFound):
        drain_node()
    with pytest.raises(WorkerNotFound):
        drain_worker("none:1")
    workers.leave(kit.worker(1))
    drain_node()
    assert states() == {"a:1": "offline"}, "a place without a session has none to drain"


def test_places_left_open(time: Any) -> None:
    kit.worker(1)
    assert workers.open_places(kit.NODE, 2) == [1, 2]
    drain_worker(f"{kit.NODE}:1")
    assert workers.open_places(kit.NODE, 2) == [2] and workers.open_places(kit.NODE, 1) == []
    drain_node()
    assert workers.open_places(kit.NODE, 8) == []


def test_a_session_takes_an_open_place_first(tmp_path: Any, settings: Any) -> None:
    settings.NODE_DIR = tmp_path / "node"
    two = node.claim_slot(first=[2])
    again = node.claim_slot(first=[2])
    try:
        assert (two.number, again.number) == (2, 1)
    finally:
        two.release()
        again.release()


def test_the_state_of_a_node(time: Any) -> None:
    fence = kit.worker(1)
    lease = kit.claimed(fence, kit.run_of(kit.task()))

    def state() -> tuple[str, int]:
        (view,) = queries.view_nodes(list(Node.objects.all()))
        return view.state, len(view.carried(fence.worker_id))

    assert state() == ("online", 1)
    drain_node()
    assert state() == ("draining", 1)
    time.advance(120_000)
    assert state() == ("lost", 1)
    drain_node(wanted=False)
    assert state() == ("lost", 1)
    again = kit.worker(1)
    assert state() == ("online", 1)
    assert expiry.expire(lease.attempt_id) == "unstarted_released"
    time.advance(120_000)
    assert state() == ("lost", 0), "it never signed off"
    assert silent_workers() is not None
    drain_node()
    assert state() == ("drained", 0) and silent_workers() is None, "a drain says that somebody knows"
    drain_node(wanted=False)
    assert state() == ("off", 0)
    workers.leave(again)
    assert WorkerFence.of(workers.register(kit.NODE, 1, 8, ["runs"])).generation == again.generation + 1
    assert state() == ("online", 0)


def test_over_the_api_by_administrators_only() -> None:
    worker = kit.worker(1)
    kit.claimed(worker, kit.run_of(kit.task()))
    boss, other = api(member("owner", administrator=True)), api(member("owner", "olga"))
    (listed,) = boss("GET", "nodes").json()["items"]
    assert (listed["id"], listed["state"], listed["running"]) == (kit.NODE, "online", 1)
    assert [item["id"] for item in listed["workers"]] == [worker.worker_id]
    for path in (f"nodes/{kit.NODE}", f"workers/{worker.worker_id}"):
        assert other("POST", f"{path}/drain").status_code == 403
        for _ in range(2):
            answer = boss("POST", f"{path}/drain")
            assert answer.status_code == 200 and answer.json()["drain_requested_at"] is not None
    assert boss("POST", f"nodes/{kit.NODE}/drain").json()["state"] == "draining"
    refused = boss("POST", f"workers/{worker.worker_id}/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "node_draining")
    assert boss("POST", f"nodes/{kit.NODE}/resume").json()["state"] == "online"
    assert boss("POST", f"workers/{worker.worker_id}/resume").json()["status"] == "online"
    assert boss("POST", "nodes/none/drain").status_code == 404
    assert other("GET", "nodes").status_code == 403


@pytest.fixture
def here(tmp_path: Any, settings: Any, time: Any) -> Iterator[presence.Presence]:
    """The cluster of a node with labels, and no session."""
    settings.NODE_DIR = tmp_path / "node"
    settings.NODE_LABELS = {"gpu": "a100"}
    yield presence.Presence(1)


def rested(found: presence.Presence) -> bool:
    """Its answer, whenever it was asked last."""
    found._look_at = 0.0
    return found.look()


def test_a_cluster_opens_a_session_for_what_its_node_alone_can_take(
    here: presence.Presence, time: Any
) -> None:
    assert not rested(here)
    (row,) = Node.objects.all()
    assert (row.pk, row.labels) == (node.node_id(), {"gpu": "a100"})
    kit.run_of(kit.task(requires={"labels": {"gpu": "h100"}}))
    assert not rested(here)
    kit.run_of(kit.task(requires={"labels": {"gpu": "a100"}}))
    assert rested(here)
    assert not here.look(), "the session that it asked for is on its way"
    slot = node.claim_slot()
    try:
        assert not rested(here), "a session is there"
    finally:
        slot.release()
    drain_node(row.pk)
    assert not rested(here)
    drain_node(row.pk, wanted=False)
    kit.worker(1, node=row.pk)
    drain_worker(f"{row.pk}:1")
    assert not rested(here), "its only place is drained"


def test_what_any_node_can_take_is_left_to_the_one_that_was_rung_for_a_second(
    here: presence.Presence, time: Any
) -> None:
    kit.run_of(kit.task())
    assert not rested(here)
    time.advance(1_000)
    assert rested(here)


def test_scripts_of_a_node_bring_it_a_session_even_when_it_is_drained(
    here: presence.Presence, time: Any
) -> None:
    fence = kit.worker(1, node=node.node_id())
    kit.advance(fence, kit.claimed(fence, kit.run_of(kit.task())))
    drain_node(node.node_id())
    assert rested(here)


def test_it_shows_itself_every_twenty_seconds(here: presence.Presence, time: Any) -> None:
    here.look()
    time.advance(30_000)
    here.look()
    assert Node.objects.get().last_heartbeat_at == clock.now() - timedelta(seconds=30)
    here._beat_at = 0.0
    here.look()
    assert Node.objects.get().last_heartbeat_at == clock.now()
    assert nodes.is_up(node.node_id(), clock.now())
    assert not nodes.is_up(node.node_id(), clock.now() + nodes.LOST_AFTER)


class Clock:
    """A machine whose clock is ahead by some seconds, as `db` reads it."""

    ahead = 0.0

    def time(self) -> float:
        return real_time.time() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Clock:
    if connection.vendor == "sqlite":
        assert db.clock_skew_ms() == 0
        pytest.skip("SQLite has no clock of its own")
    found = Clock()
    monkeypatch.setattr(db, "time", found)
    return found


def test_a_clock_that_is_off_takes_nothing_and_judges_nobody(
    machine: Clock, here: presence.Presence, time: Any
) -> None:
    assert abs(db.clock_skew_ms()) < 1_000
    fence = kit.worker(1, node=OTHER)
    lease = kit.claimed(fence, kit.run_of(kit.task()))
    kit.advance(fence, lease)
    kit.run_of(kit.task(requires={"labels": {"gpu": "a100"}}))
    kit.silence(OTHER)
    kit.expire_now(lease)
    for machine.ahead in (-130.0, 130.0):
        assert abs(db.clock_skew_ms() - machine.ahead * 1000) < 1_000
        assert not rested(here)
        session = workers.register(kit.NODE, 1, 8, ["runs"])
        assert session.node.clock_skew_ms // 10_000 == machine.ahead // 10
        found = workers.heartbeat(WorkerFence.of(session), 8, [], kit.TTL_MS)
        assert found is not None and found.held_back
        assert expiry.expire_page() is None and kit.fresh(lease.run_id).status == "running"
    machine.ahead = 3.0
    assert rested(here)
    expiry.expire_page()
    assert kit.fresh(lease.run_id).status == "lost"
