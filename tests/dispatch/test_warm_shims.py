"""A shim that stays for another run (architecture.md §2): when it does, what it keeps apart, and what if it dies."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from apps.dispatch.launcher.control import SPEC_BYTES_MAX
from apps.dispatch.launcher.spec import CommandBody
from apps.dispatch.launching import Planner, attempt_folder
from apps.dispatch.source import RunSource
from apps.runs import services
from apps.runs.models import Run, RunAttempt
from tests.dispatch.sessions import Home
from tests.dispatch.shim_kit import Kit, Live, alive, until
from tests.runs import kit as runs


@pytest.fixture
def kit(tmp_path: Any) -> Any:
    found = Kit(tmp_path)
    yield found
    found.finish()


def ended(live: Live) -> bool:
    """Whether the shim stayed when its run was over."""
    live.go()
    return live.wait("ended").warm


def again(kit: Kit, first: Live, body: Any, **changes: Any) -> Live:
    """Another run for the shim of the first."""
    spec = kit.spec(body, **changes)
    assert first.shim.again(spec.encode())
    return Live(kit, spec, first.shim)


def test_next_run_in_the_same_shim_sees_nothing_of_the_first(kit: Kit) -> None:
    world = {"PATH": "/usr/bin:/bin", "HOME": f"{kit.home}/home"}
    first = kit.launch("cd /tmp; echo one; ulimit -n 77; exit 3", env={**world, "SECRET": "s3"})
    assert ended(first)
    second = again(kit, first, "env; pwd; ls -l /proc/self/fd | wc -l; exit 4", env=world)
    assert ended(second)
    assert second.wait("ready").pid == first.wait("ready").pid
    assert (first.receipt().exit_code, second.receipt().exit_code) == (3, 4)
    assert first.log == b"one\n"
    assert b"SECRET" not in second.log and b"s3" not in second.log
    assert f"\n{kit.home}/home\n".encode() in second.log
    assert (
        second.spec.attempt_dir.encode() in second.log and first.spec.attempt_dir.encode() not in second.log
    )
    assert second.fact("log.json") is None and second.truncation() is False


def test_it_ends_with_its_session(kit: Kit) -> None:
    live = kit.launch("exit 0")
    assert ended(live)
    pid = live.wait("ready").pid
    live.shim.close()
    until(lambda: not alive(pid), "the end of the warm shim")


def test_a_late_stop_is_nobody_s(kit: Kit) -> None:
    first = kit.launch("exit 0")
    assert ended(first)
    assert first.shim.stop() and first.shim.go()
    second = again(kit, first, "echo two")
    assert ended(second) and second.log == b"two\n" and second.receipt().exit_code == 0


@pytest.mark.parametrize(
    "body",
    [
        "sleep 300 &",  # left somebody behind
        "head -c 70000 /dev/zero",  # has seen much
        "exit 255",  # may be a fault of the supervisor itself
    ],
)
def test_only_short_quiet_runs_leave_a_warm_shim(kit: Kit, body: str) -> None:
    live = kit.launch(body)
    assert not ended(live)
    until(lambda: not alive(live.wait("ready").pid), "the end of the shim")


def test_a_signal_ends_a_warm_shim(kit: Kit) -> None:
    live = kit.launch("exit 0")
    assert ended(live)
    pid = live.wait("ready").pid
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid), "the end of the warm shim")


def test_a_stopped_run_leaves_none(kit: Kit) -> None:
    live = kit.launch("sleep 300").go()
    live.wait("started")
    live.shim.stop()
    assert not live.wait("ended").warm


def test_kept_ones_end_when_nobody_needs_them(kit: Kit) -> None:
    lives = [kit.launch("exit 0") for _ in range(3)]
    for live in lives:
        assert ended(live)
        kit.launcher.keep(live.shim)
    pids = [live.wait("ready").pid for live in lives]
    kit.launcher.trim()
    assert all(map(alive, pids))
    used = kit.launcher.take_warm()
    assert used is lives[2].shim
    kit.launcher.keep(used)
    kit.launcher.trim()
    until(
        lambda: [alive(pid) for pid in pids] == [False, False, True],
        "the end of the two that were not needed",
    )


def test_one_that_died_is_not_given_out(kit: Kit) -> None:
    live = kit.launch("exit 0")
    assert ended(live)
    kit.launcher.keep(live.shim)
    pid = live.wait("ready").pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the end of the warm shim")
    assert kit.launcher.take_warm() is None
    assert kit.run("exit 5").receipt().exit_code == 5


# -- sessions ---------------------------------------------------------------------------------------------------


def start(count: int, **options: Any) -> list[Run]:
    task = runs.task(concurrency="parallel", max_parallel=64, **options)
    return [runs.run_of(task) for _ in range(count)]


def handles(some: list[Run]) -> list[str | None]:
    return [runs.attempt_of(run).executor_handle for run in some]


def test_runs_follow_each_other_in_one_shim(home: Home) -> None:
    """The story of each run stays whole, whether it was claimed and let go in one pass or in two."""
    followed = start(5, shell="echo $QINGLONG_RUN_ID")
    assert home.session(slots=1) == "idle"
    assert len(set(handles(followed))) == 1
    for run in followed:
        assert runs.fresh(run).status == "succeeded" and home.log_of(run) == f"{run.pk}\n".encode()
        assert runs.events(run) == [
            "attempt.claimed", "run.queued", "run.dispatching", "attempt.starting", "attempt.running",
            "run.running", "attempt.succeeded", "run.succeeded",
        ]  # fmt: skip
        runs.check_history(run)


def test_a_stop_that_came_before_the_claim_gets_no_go(home: Home) -> None:
    first, second = start(2, shell="echo ran")
    services.request_cancel(runs.grant("run.stop"), second.pk)
    home.session(slots=1)
    assert runs.fresh(first).status == "succeeded" and runs.fresh(second).status == "cancelled"
    assert home.log_of(first) == b"ran\n"


def test_a_warm_shim_that_dies_before_its_next_run_costs_no_run(home: Home) -> None:
    """What is on record as starting was provably never let go: it queues anew, with an attempt of its own."""
    first, second = start(2, shell="echo $QINGLONG_ATTEMPT")
    hand_over = RunSource._hand_over

    def kill_first(source: RunSource, claimed: Any) -> None:
        shim = source._preparation._ready[claimed.attempt.pk].shim
        if claimed.run.pk == second.pk and claimed.attempt.attempt == 1:
            os.kill(shim.handle.pid, signal.SIGKILL)
            until(lambda: not alive(shim.handle.pid), "the end of the warm shim")
        hand_over(source, claimed)

    with patch.object(RunSource, "_hand_over", kill_first):
        home.session(slots=1)
    assert runs.fresh(first).status == runs.fresh(second).status == "succeeded"
    attempts = list(RunAttempt.objects.filter(run=second).order_by("attempt"))
    assert [(row.status, row.error_code) for row in attempts] == [
        ("lost", "RECOVERY_NEVER_STARTED"),
        ("succeeded", None),
    ]
    assert home.log_of(second) == b"2\n"
    assert runs.events(second) == [
        "attempt.claimed", "run.queued", "run.dispatching", "attempt.starting", "attempt.lost", "run.lost",
        "run.queued", "attempt.claimed", "run.dispatching", "attempt.starting", "attempt.running", "run.running",
        "attempt.succeeded", "run.succeeded",
    ]  # fmt: skip
    assert not Path(attempt_folder(attempts[0])).exists()


def test_a_run_that_cannot_be_readied_costs_nobody_else(home: Home) -> None:
    """Inside the pass its fault would be everybody's: it takes the longer way, and fails there alone."""
    runs_ = start(4, shell="echo ran")
    plan = Planner.plan

    def poisoned(planner: Planner, run: Run, *args: Any) -> Any:
        if run.pk == runs_[2].pk:
            raise KeyError("poison")
        return plan(planner, run, *args)

    with patch.object(Planner, "plan", poisoned):
        home.session(slots=1)
    assert [runs.fresh(run).status for run in runs_] == ["succeeded", "succeeded", "failed", "succeeded"]
    assert not Path(attempt_folder(runs.attempt_of(runs_[2]))).exists()


def test_a_specification_with_go_in_front_starts_without_a_word(kit: Kit) -> None:
    first = kit.launch("exit 0")
    assert ended(first)
    spec = kit.spec("echo at once; exit 5")
    assert first.shim.again(spec.encode(), go=True)
    second = Live(kit, spec, first.shim)
    assert second.wait("ended").warm
    assert "ready" not in [message.state for message in second.messages]
    assert (second.receipt().exit_code, second.log) == (5, b"at once\n")


@pytest.mark.parametrize("size", [SPEC_BYTES_MAX, SPEC_BYTES_MAX + 1])
def test_the_largest_specification_fits_with_go_in_front(kit: Kit, size: int) -> None:
    first = kit.launch("exit 0")
    assert ended(first)
    empty = kit.spec("exit 0", env={"FILL": ""})
    spec = replace(empty, env={"FILL": "x" * (size - len(empty.encode()))})
    assert first.shim.again(spec.encode(), go=True) is (size <= SPEC_BYTES_MAX)


def test_a_script_that_leaves_somebody_is_told_of_before_that_one_is_ended(kit: Kit) -> None:
    live = kit.launch("sleep 300 &").go()
    assert live.wait("started").pid > 1
    assert [message.state for message in live.messages] == ["ready", "started"]
    live.wait("ended")


def test_a_shim_gives_way_and_its_script_does_not(kit: Kit) -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip("these tests run with a priority of their own")
    script = "import os, time; print(os.sched_getscheduler(0), flush=True); time.sleep(300)"
    live = kit.launch(CommandBody((sys.executable, "-c", script))).go()
    shim, body = live.wait("ready").pid, live.wait("started").pid
    assert os.sched_getscheduler(shim) == os.SCHED_BATCH
    until(lambda: live.log, "the first line")
    assert live.log == f"{os.SCHED_OTHER}\n".encode()
    assert os.sched_getscheduler(body) == os.SCHED_OTHER
