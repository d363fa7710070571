"""A process dies at every commit and file step of claim, start, publish, settle and adopt in turn.

However it is cut, the run comes to the end that is true: it succeeds after one start of its script, or, where its
shim was killed once it had been let go, it is lost. Only that may lose it, nothing may start it twice.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection

from apps.core import clock
from apps.dispatch.carried import unheld
from apps.dispatch.launching import attempts_root, receipts_root
from apps.dispatch.models import CompletionReceiptJournal, RunDispatchLease
from apps.dispatch.services import orphans
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt
from tests.chaos.faults import ROOT, Sessions
from tests.dispatch.conftest import home  # noqa: F401
from tests.dispatch.sessions import Home
from tests.dispatch.shim_kit import until
from tests.runs import kit

SESSION = {
    "claim": [
        "before commit of a claim", "after commit of a claim",
    ],
    "start": [
        "before asking for a shim", "after asking for a shim", "before commit of a start", "after commit of a start",
        "before saying go", "after saying go", "before commit of a beginning", "after commit of a beginning",
    ],
    "settle": [
        "before reading the receipt", "after reading the receipt", "before commit of an end", "after commit of an end",
        "before removing what is empty", "after removing what is empty", "before removing the receipt",
        "after removing the receipt", "before commit of a resolved row", "after commit of a resolved row",
    ],
}  # fmt: skip
# The second run of a session finds a warm shim: it is claimed and started in one pass.
WARM = [
    "before making the folder", "after making the folder", "before handing the run to a warm shim",
    "after handing the run to a warm shim",
]  # fmt: skip
ADOPT = [
    "before taking the leases over", "after taking the leases over", "after the commit of the adoption",
    "before following what was adopted", "after following what was adopted",
]  # fmt: skip
ASIDE = [
    "before marking a receipt as put aside", "after marking a receipt as put aside", "before putting a receipt aside",
    "after putting a receipt aside",
]  # fmt: skip
PURGE = ["before purging a receipt", "after purging a receipt"]
# What a shim does, in this order; the log is empty until the script says something.
SHIM = [
    "mkdir folder", "open log", "open receipt", "posix_fallocate receipt", "pwrite receipt", "tell ready",
    "pwrite receipt 2", "fchmod folder", "start the script", "pwrite receipt 3", "tell started", "write log",
    "rename folder", "fsync log", "open log 2", "write log 2", "fsync log 2", "link log", "unlink log",
    "write receipt", "ftruncate receipt", "fsync receipt", "link receipt", "fsync receipt 2", "unlink receipt",
    "tell ended",
]  # fmt: skip
# What it does besides where it has stopped something; a step of that kind comes before the receipt.
STOP_FACT = ["open folder", "write folder", "fsync folder", "rename folder", "fsync folder 2"]
LET_GO, PUBLISHED = SHIM.index("pwrite receipt 2"), SHIM.index("link receipt")


class Node:
    """One node, its faulty launcher and sessions that die when told."""

    def __init__(self, home: Home, sessions: Sessions) -> None:  # noqa: F811
        self.home = home
        self.sessions = sessions
        self.task = kit.task(
            "job",
            concurrency="parallel",
            max_parallel=64,
            # It takes its time, so that its start is told of apart from its end.
            shell=f'sleep 0.05; echo "$QINGLONG_RUN_ID" | tee -a {home.path}/ran',
        )
        program = ROOT / "tests" / "chaos" / "faulty_launcher.py"
        command = [sys.executable, "-I", "-S", str(program), "--node-dir", str(home.node), "--detach"]
        subprocess.run(command, env={}, check=True)

    def arm(self, step: str) -> None:
        """The next shim dies before the step."""
        (self.home.path / "fault").write_text(step)

    def run(self, fault: str = "") -> str:
        return self.sessions.run(self.home.path, fault)

    def gone(self) -> None:
        """Waits until no shim of a dead session is at work any more: what it still does is no fault's end."""
        folders = [path for path in attempts_root().glob("[!.]*/*") if path.is_dir()]
        until(lambda: all(unheld(path) or not path.exists() for path in folders), "the end of the shims")

    def starts(self, run: Run) -> int:
        ran = self.home.path / "ran"
        return ran.read_text().split().count(str(run.pk)) if ran.exists() else 0

    def check(self, run: Run, point: str, *, lost: bool = False, attempts: tuple[int, ...] = (1, 2)) -> None:
        """The run's end is right, told once, and nothing of it is left but what a killed shim leaves."""
        found = kit.fresh(run)
        types = kit.events(run)
        assert found.status == ("lost" if lost else "succeeded"), (
            point,
            found.status,
            found.error_code,
            types,
        )
        assert self.starts(run) <= 1 if lost else self.starts(run) == 1, (point, self.starts(run), types)
        kit.check_history(run)
        for once in () if lost else ("attempt.running", "run.running", "attempt.succeeded", "run.succeeded"):
            assert types.count(once) == 1, (point, types)
        rows = list(RunAttempt.objects.filter(run=run).order_by("attempt"))
        assert len(rows) in attempts, (point, types)
        assert {row.error_code for row in rows[:-1]} <= {"RECOVERY_NEVER_STARTED"}, (point, types)
        assert not any(row.status in ACTIVE_ATTEMPT for row in rows)
        assert not RunDispatchLease.objects.filter(run=run, status="leased").exists(), point

    def check_clean(self) -> None:
        """One more session and the auditor leave nothing on the node."""
        CompletionReceiptJournal.objects.filter(state="quarantined").update(purge_after=clock.now())
        at = clock.now_ms() + 120_000
        with clock.fixed(lambda: at):
            self.home.session()
            for start in range(0, 256, orphans.MAX_SHARDS):
                orphans.audit("quarantine", start=start, shards=orphans.MAX_SHARDS, min_age=timedelta(0))
        assert not CompletionReceiptJournal.objects.exists()
        assert list(attempts_root().glob("*/*")) == []
        assert [path for path in receipts_root().glob("*/*") if not path.parent.name.startswith(".")] == []


@pytest.fixture(scope="module")
def sessions(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    made = Sessions(str(connection.settings_dict["NAME"]), tmp_path_factory.mktemp("helper"))
    yield made
    made.close()


@pytest.fixture
def node(home: Home, sessions: Sessions) -> Node:  # noqa: F811
    return Node(home, sessions)


@pytest.mark.parametrize("phase", SESSION)
def test_a_session_dies(node: Node, phase: str) -> None:
    for point in SESSION[phase]:
        run = kit.run_of(node.task)
        assert node.run(point) == "killed", f"never came to {point}"
        assert node.run() == "idle"
        if kit.fresh(run).status != "succeeded":  # it ended while the second one was idle already
            node.gone()
            assert node.run() == "idle"
        node.check(run, point)
    node.check_clean()


def test_a_session_dies_that_has_a_warm_shim(node: Node) -> None:
    for point in WARM:
        runs = [kit.run_of(node.task) for _ in range(6)]
        assert node.run(point) == "killed", f"never came to {point}"
        for _again in range(2):
            node.gone()
            assert node.run() == "idle"
        for run in runs:
            node.check(run, point)
    node.check_clean()


def test_a_session_dies_that_adopts(node: Node) -> None:
    gate = node.home.path / "gate"
    task = kit.task(
        "gated", concurrency="parallel", max_parallel=8,
        shell=f'echo "$QINGLONG_RUN_ID" >> {node.home.path}/ran; while ! test -e {gate}; do sleep 0.02; done',
    )  # fmt: skip
    for point in ADOPT:
        gate.unlink(missing_ok=True)
        run = kit.run_of(task)
        assert node.run("after commit of a beginning") == "killed"
        assert node.run(point) == "killed", f"never came to {point}"
        assert kit.fresh(run).status == "running"
        gate.touch()
        node.gone()
        assert node.run() == "idle"
        node.check(run, point, attempts=(1,))
    node.check_clean()


def test_a_session_dies_that_puts_a_receipt_aside(node: Node) -> None:
    """The script forges its own; what it wrote is kept as evidence, and purged when its time is over."""
    forged = kit.task(
        "forger", concurrency="parallel", max_parallel=8,
        shell=f'echo "$QINGLONG_RUN_ID" >> {node.home.path}/ran; n=$(basename "$(dirname "$QINGLONG_OUTPUT")");'
        f' for d in {receipts_root()}/*; do [ -e "$d"/."$n".*.tmp ] && echo "{{}}" > "$d/$n.json"; done; true',
    )  # fmt: skip
    runs = []
    for point in ASIDE:
        runs.append(kit.run_of(forged))
        assert node.run(point) == "killed", f"never came to {point}"
        assert node.run() == "idle"
        node.check(runs[-1], point, lost=True, attempts=(1,))
        row = CompletionReceiptJournal.objects.get(run=runs[-1])
        assert row.state == "quarantined" and (receipts_root() / (row.quarantine_ref or "")).exists(), point
    for run, point in zip(runs, PURGE, strict=False):
        row = CompletionReceiptJournal.objects.get(run=run)
        CompletionReceiptJournal.objects.filter(run=run).update(purge_after=row.updated_at)
        assert node.run(point) == "killed", f"never came to {point}"
        assert node.run() == "idle"
        assert not CompletionReceiptJournal.objects.filter(run=run).exists(), point
        assert not (receipts_root() / (row.quarantine_ref or "")).exists(), point
    node.check_clean()


def test_every_step_of_a_shim_is_known(node: Node) -> None:
    """A step that is new needs its place among those at which a shim is killed."""
    kit.run_of(node.task)
    node.arm("record")
    assert node.run() == "idle"
    assert (node.home.path / "steps").read_text().splitlines() == SHIM


@pytest.mark.parametrize("half", ["until it lets go", "until it has published"])
def test_a_shim_dies(node: Node, half: str) -> None:
    for number, point in enumerate(SHIM):
        if (number <= LET_GO) != (half == "until it lets go"):
            continue
        run = kit.run_of(node.task)
        node.arm(point)
        assert node.run() == "idle"
        assert not (node.home.path / "fault").exists(), f"never came to {point}"
        end = time.monotonic() + 5
        while kit.fresh(run).status not in ("succeeded", "lost") and time.monotonic() < end:
            assert node.run() == "idle"
        node.check(run, point, lost=LET_GO < number <= PUBLISHED)
    node.check_clean()


def test_a_shim_dies_that_says_what_it_stopped(node: Node) -> None:
    task = kit.task(
        "leftover", concurrency="parallel", max_parallel=8,
        shell=f'echo "$QINGLONG_RUN_ID" >> {node.home.path}/ran; sleep 60 &',
    )  # fmt: skip
    for point in STOP_FACT:
        run = kit.run_of(task)
        node.arm(point)
        assert node.run() == "idle"
        assert not (node.home.path / "fault").exists(), f"never came to {point}"
        node.check(run, point, lost=True, attempts=(1,))
    node.check_clean()


def test_shims_that_die_each_time_are_no_accident(node: Node) -> None:
    run = kit.run_of(node.task)
    node.arm("always tell ready")
    # A session that waits for a slow machine may take itself for idle; the next one goes on where it was.
    until(lambda: node.run() == "idle" and kit.fresh(run).status == "failed")
    found = kit.fresh(run)
    assert (found.status, found.error_code, found.error_summary) == (
        "failed", "EXECUTOR_START_FAILED", "launcher_failed",
    )  # fmt: skip
    assert kit.events(run).count("run.dispatch_released") == 2 and node.starts(run) == 0
    kit.check_history(run)
