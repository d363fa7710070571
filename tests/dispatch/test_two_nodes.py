"""Two nodes on one machine: each with its own folder, launcher and sessions; logs, keyring and database are shared."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.dispatch import fence as fences
from apps.dispatch.models import CompletionReceiptJournal, Node, RunDispatchLease, Worker
from apps.dispatch.queries import view_nodes, waiting_for
from apps.dispatch.services import draining, expiry
from apps.runs.models import Run, RunAttempt
from apps.runs.services import retrying
from tests.dispatch.sessions import Home, alive, wait, wait_for
from tests.e2e.up_kit import eventually
from tests.runs import kit

AGAIN = {"max_attempts": 2, "retry_on_lost": True, "safety": "idempotent"}
OPERATOR = ("user", "u")
# A process that starts beside many others on a busy machine takes its time.
START_S = 60


class Member(Home):
    """One node of the two."""

    shared: dict[str, str]

    def start(self, **environment: str) -> Any:
        """A resident session of it, on record."""
        before = set(Worker.objects.values_list("session_id", flat=True))
        process = self.worker(**self.shared, **environment)
        eventually(
            lambda: Worker.objects.filter(node_id=self.id).exclude(session_id__in=before).exists(),
            "the session to register",
            START_S,
        )
        return process

    @property
    def id(self) -> str:
        return (self.node / "id").read_text().strip() if (self.node / "id").exists() else "?"


@pytest.fixture
def member(
    home: Home, tmp_path_factory: pytest.TempPathFactory, settings: Any
) -> Iterator[Callable[[str], Member]]:
    """Makes nodes; the first one is where this process would run sessions itself."""
    if connection.vendor == "sqlite":
        pytest.skip("one SQLite file belongs to one machine")
    made: list[Member] = []

    def make(path: Path) -> Member:
        found = Member(path)
        found.shared = {
            "QINGLONG_LOGS": str(settings.LOG_ROOT), "QINGLONG_KEYRING": str(settings.KEYRING_PATH),
        }  # fmt: skip
        made.append(found)
        return found

    yield lambda name: make(home.path if name == "first" else tmp_path_factory.mktemp(name))
    for one in made:
        for process in one.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        one.finish()


@pytest.fixture
def nodes(member: Callable[[str], Member]) -> tuple[Member, Member]:
    return member("first"), member("second")


def node_of(run: Run) -> str:
    return (kit.attempt_of(run).worker_id or "").partition(":")[0]


def long_one(folder: Path, **options: Any) -> tuple[Run, Path]:
    """A run whose first attempt goes on until its gate is there; each attempt leaves a mark when it begins and ends."""
    gate, marks = folder / "gate", folder / "marks"
    shell = (
        f'echo "begun $QINGLONG_ATTEMPT $$" >> {marks};'
        f" [ $QINGLONG_ATTEMPT != 1 ] || while [ ! -e {gate} ]; do sleep 0.05; done;"
        f' echo "done $QINGLONG_ATTEMPT" >> {marks}'
    )
    return kit.run_of(kit.task("long", shell=shell, kill_grace_ms=300, **options)), gate


def marks(folder: Path) -> list[list[str]]:
    path = folder / "marks"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def lose(run: Run, node_id: str) -> None:
    """Two minutes without a sign of a node, as everybody else sees it."""
    kit.silence(node_id)
    lease = RunDispatchLease.objects.get(run=run)
    kit.expire_now(fences.of_lease(lease))
    assert expiry.expire(lease.pk) == "lost"


def test_both_take_from_one_queue_and_write_into_one_place(nodes: tuple[Member, Member]) -> None:
    first, second = nodes
    first.start(QINGLONG_SLOTS="2")
    second.start(QINGLONG_SLOTS="2")
    task = kit.task(shell="echo $QINGLONG_RUN_ID; sleep 0.2", concurrency="parallel", max_parallel=64)
    runs = [kit.run_of(task) for _ in range(12)]
    assert {wait_for(run).status for run in runs} == {"succeeded"}
    assert {node_of(run) for run in runs} == {first.id, second.id}
    for run in runs:
        assert first.log_of(run) == f"{run.pk}\n".encode()
        kit.check_history(run)
    assert not any(path.exists() for path in (second.path / "logs", second.path / "keyring.json"))


def test_a_drained_node_keeps_its_script_and_the_other_takes_the_queue(
    nodes: tuple[Member, Member], tmp_path: Path
) -> None:
    first, second = nodes
    session = first.start()
    run, gate = long_one(tmp_path)
    wait_for(run, "running")
    assert draining.set_node(True, first.id, actor=OPERATOR, origin="tests")
    assert not draining.set_node(True, first.id, actor=OPERATOR, origin="tests")
    queued = kit.run_of(kit.task("queued"))
    second.start()
    assert wait_for(queued).status == "succeeded" and node_of(queued) == second.id
    state = {view.node.pk: (view.state, len(view.leases)) for view in view_nodes(list(Node.objects.all()))}
    assert state == {first.id: ("draining", 1), second.id: ("online", 0)}
    # Its processes start anew: it stays drained, and takes up what it carried.
    first.kill(session)
    first.start()
    wait(lambda: "run.dispatch_adopted" in kit.events(run), "adoption")
    assert Worker.objects.get(node_id=first.id).status == "draining"
    gate.touch()
    assert wait_for(run).status == "succeeded" and node_of(run) == first.id
    (drained,) = view_nodes([Node.objects.get(pk=first.id)])
    assert drained.state == "drained"
    second.kill(second.processes[0])
    waits = kit.run_of(kit.task("waits"))
    assert draining.set_node(False, first.id, actor=OPERATOR, origin="tests")
    assert wait_for(waits).status == "succeeded" and node_of(waits) == first.id


def test_a_run_goes_where_its_labels_are(nodes: tuple[Member, Member]) -> None:
    first, second = nodes
    first.start()
    needing = kit.task(
        "needing", requires={"labels": {"gpu": "a100"}}, concurrency="parallel", max_parallel=8
    )
    run = kit.run_of(needing)
    plain = kit.run_of(kit.task("plain"))
    assert wait_for(plain).status == "succeeded"
    assert kit.fresh(run).status == "queued" and waiting_for([run]) == {run.pk: "labels"}
    second.start(QINGLONG_NODE_LABELS="zone=eu,gpu=a100")
    more = [kit.run_of(needing) for _ in range(3)]
    for one in (run, *more):
        assert wait_for(one).status == "succeeded" and node_of(one) == second.id


def test_a_node_that_was_away_settles_from_its_receipt(nodes: tuple[Member, Member], tmp_path: Path) -> None:
    first, second = nodes
    away = second.start()
    run, gate = long_one(tmp_path, retry=AGAIN)
    wait_for(run, "running")
    second.kill(away)
    first.start()
    gate.touch()
    wait(lambda: len(marks(tmp_path)) == 2, "the script")
    # Its lease is over, and it was heard of a moment ago: the other node decides nothing.
    lease = RunDispatchLease.objects.get(run=run)
    kit.expire_now(fences.of_lease(lease))
    assert expiry.expire(lease.pk) == "node_up"
    assert kit.fresh(run).status == "running"
    second.start()
    ended = wait_for(run)
    assert (ended.status, kit.attempt_of(run).attempt) == ("succeeded", 1)
    assert [mark[:2] for mark in marks(tmp_path)] == [["begun", "1"], ["done", "1"]]
    kit.check_history(run)


@pytest.mark.parametrize(("how", "retried"), [("killed", True), ("frozen", False)])
def test_a_node_that_returns_stops_what_was_decided_without_it(
    nodes: tuple[Member, Member], tmp_path: Path, how: str, retried: bool
) -> None:
    first, second = nodes
    away = second.start()
    run, gate = long_one(tmp_path, **({"retry": AGAIN} if retried else {}))
    wait_for(run, "running")
    shim = kit.attempt_of(run).pid or 0
    (_begun, _attempt, script) = wait(lambda: marks(tmp_path), "the script")[0]
    os.kill(shim, signal.SIGSTOP)
    if how == "killed":
        second.kill(away)
    else:
        away.send_signal(signal.SIGSTOP)
    lose(run, second.id)
    first.start()
    retrying.sweep()
    retrying.sweep()
    ended = wait_for(run, "succeeded" if retried else "failed")
    if retried:
        assert node_of(run) == first.id and kit.attempt_of(run).attempt == 2
    else:
        assert ended.error_code == "RUN_LOST_RETRY_DISABLED"
        assert RunAttempt.objects.filter(run=run).count() == 1
    assert alive(int(script))
    version = kit.fresh(run).version
    if how == "killed":
        second.start()
    else:
        away.send_signal(signal.SIGCONT)
    wait(lambda: not alive(int(script)) and not alive(shim), "the old tree to be gone")
    assert not gate.exists() and ["done", "1"] not in marks(tmp_path)
    # Its end is evidence and nothing more.
    name = str(RunAttempt.objects.get(run=run, attempt=1).pk)
    wait(lambda: (second.node / "receipts" / name[-2:] / f"{name}.json").exists() or
         (second.node / "receipts" / ".quarantine" / name[-2:] / f"{name}.json").exists(), "its receipt")  # fmt: skip
    assert CompletionReceiptJournal.objects.filter(attempt_id=name).exists()
    assert kit.fresh(run).version == version
    assert [attempt.status for attempt in RunAttempt.objects.filter(run=run).order_by("attempt")] == (
        ["lost", "succeeded"] if retried else ["lost"]
    )
    kit.check_history(run)
