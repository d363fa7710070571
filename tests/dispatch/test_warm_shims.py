"""A shim that stays for another run (architecture.md §2): when it does, what it keeps apart, and what if it dies."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from apps.core import node
from apps.dispatch import carried, journal, predecessors
from apps.dispatch.carried import never_started
from apps.dispatch.launcher import files
from apps.dispatch.launching import Planner, attempt_folder, receipts_root
from apps.dispatch.receipts import ReceiptStore
from apps.dispatch.services import adoption, passes
from apps.dispatch.source import RunSource
from apps.runs import retries, services
from apps.runs.models import Run, RunAttempt
from tests.dispatch.sessions import Home, wait
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
    assert not attempt_folder(attempts[0]).exists()


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
    assert not attempt_folder(runs.attempt_of(runs_[2])).exists()


class Dead(BaseException):
    """A session that is killed."""


def crash(home: Home, at: str) -> None:
    """A session that dies at once when it gets there."""

    def die(*_: Any, **__: Any) -> None:
        raise Dead

    with patch.object(RunSource, at, die), pytest.raises(Dead):
        home.session(slots=1)
    gc.collect()  # the sockets that a killed process would not hold any more


@pytest.mark.parametrize("at", ["_hand_over", "_go"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_killed_between_the_record_and_the_go(home: Home, at: str, cancelled: bool) -> None:
    """runs.md §9.2, §14: "launched or not?" has an answer, and what was not launched is not lost."""
    warm, run = start(2, shell="echo ran $QINGLONG_ATTEMPT")
    crash(home, at)
    caught = next(row for row in RunAttempt.objects.filter(status="starting"))
    wait(lambda: never_started(attempt_folder(caught)), "the folder that says so")
    if cancelled:
        services.request_cancel(runs.grant("run.stop"), caught.run_id)
    home.session(slots=1)
    found = runs.fresh(caught.run)
    assert found.status == ("cancelled" if cancelled else "succeeded"), (
        found.error_code,
        found.error_summary,
    )
    assert RunAttempt.objects.get(pk=caught.pk).status == ("cancelled" if cancelled else "lost")
    assert home.log_of(caught.run) == (b"" if cancelled else b"ran 2\n")
    others = [row for row in (warm, run) if row.pk != caught.run_id]
    assert {runs.fresh(row).status for row in others} == {"succeeded"}
    runs.check_history(caught.run)


def test_the_proof_stays_for_whoever_holds_the_lease_now(home: Home) -> None:
    """A session that was held up knows that nothing ran, and may not say so any more; the next one must see it too."""
    run = runs.run_of(runs.task(shell="echo ran $QINGLONG_ATTEMPT"))
    crash(home, "_go")
    folder = attempt_folder(runs.attempt_of(run))
    wait(lambda: never_started(folder), "the folder that says so")
    store, thief = passes.store, runs.worker(slot=7, node=node.node_id())
    stolen = []

    def late(fence: Any, news: Any, ttl_ms: int) -> Any:
        if news.unstarted and not stolen:
            stolen.extend(adoption.adopt(thief, [fence.worker_id], ttl_ms, 8, lambda _attempt: False)[0])
        return store(fence, news, ttl_ms)

    with patch.object(passes, "store", late):
        home.session(slots=1)
    assert len(stolen) == 1 and runs.fresh(run).status == "dispatching" and never_started(folder)
    home.session(slots=1)
    assert (runs.fresh(run).status, home.log_of(run)) == ("succeeded", b"ran 2\n")
    assert not folder.exists()


def test_the_folder_of_what_never_started_goes_with_the_next_look(home: Home) -> None:
    run = runs.run_of(runs.task(shell="exit 0"))
    crash(home, "_go")
    folder = attempt_folder(runs.attempt_of(run))
    wait(lambda: never_started(folder), "the folder that says so")
    with patch.object(carried, "remove_folder"):  # as if it were killed right before
        home.session(slots=1)
    assert runs.fresh(run).status == "succeeded" and folder.exists()
    home.session(slots=1)
    assert not folder.exists()


def test_an_attempt_waits_for_the_shim_of_a_session_that_is_gone(home: Home) -> None:
    """Frozen, it does not see that it is alone; it is woken and stopped, and costs the run nothing."""
    run = runs.run_of(runs.task(shell="exit 0"))
    frozen = []

    def die(source: Any, item: Any) -> None:
        for message in item.shim.receive():
            os.kill(message.pid, signal.SIGSTOP)
            frozen.append(message.pid)
        raise Dead

    with patch.object(RunSource, "_heard", die), pytest.raises(Dead):
        home.session(slots=1)
    gc.collect()
    with patch.object(predecessors.Holder, "stop"), home.session_beside() as session:
        wait(lambda: session._sources[0]._behind, "the attempt to wait")
        assert runs.attempt_of(run).status == "claimed"
    assert alive(frozen[0])
    with home.session_beside():
        wait(lambda: runs.fresh(run).status == "succeeded", "the run")
    assert not alive(frozen[0]) and RunAttempt.objects.filter(run=run).count() == 1
    runs.check_history(run)
    wait(lambda: not attempt_folder(runs.attempt_of(run)).exists(), "the folder to go")


def test_sessions_that_died_are_not_held_against_the_run(home: Home) -> None:
    """Given back three times already, it is claimed anew when, for once, its shim dies."""
    run = runs.run_of(runs.task(shell="exit 0"))
    killed = []

    def die(*_: Any) -> None:
        raise Dead

    for _ in range(retries.NEVER_STARTED_MAX):
        with patch.object(RunSource, "_heard", die), pytest.raises(Dead):
            home.session(slots=1)
        gc.collect()

    heard = RunSource._heard

    def kill(source: Any, item: Any) -> None:
        if not killed:
            killed.append(until(item.shim.receive)[0].pid)
            os.kill(killed[0], signal.SIGKILL)
            until(lambda: not alive(killed[0]), "the end of the shim")
        heard(source, item)

    with patch.object(RunSource, "_heard", kill):
        home.session(slots=1)
    found = runs.fresh(run)
    assert (found.status, len(killed)) == ("succeeded", 1), found.error_summary
    assert runs.events(run).count("run.dispatch_released") == retries.NEVER_STARTED_MAX + 1


def test_what_never_starts_is_lost_in_the_end(home: Home) -> None:
    run = runs.run_of(runs.task(shell="exit 0"))
    for number in range(1, retries.NEVER_STARTED_MAX + 1):
        crash(home, "_go")
        attempt = RunAttempt.objects.get(run=run, attempt=number)
        assert attempt.status == "starting"
        wait(lambda attempt=attempt: never_started(attempt_folder(attempt)), "the folder that says so")
        if number == retries.NEVER_STARTED_MAX:
            home.session(slots=1)
    found = runs.fresh(run)
    assert (found.status, found.error_code) == ("lost", retries.NEVER_STARTED)
    assert RunAttempt.objects.filter(run=run).count() == retries.NEVER_STARTED_MAX


def test_a_missing_folder_proves_nothing(home: Home) -> None:
    run = runs.run_of(runs.task(shell="exit 0"))
    crash(home, "_go")
    folder = attempt_folder(runs.attempt_of(run))
    wait(lambda: never_started(folder), "the folder that says so")
    folder.rmdir()
    home.session(slots=1)
    found = runs.fresh(run)
    assert (found.status, found.error_code) == ("lost", "RECOVERY_ATTEMPT_INCOMPLETE")


def test_a_script_cannot_make_its_run_look_as_if_it_had_never_started(kit: Kit) -> None:
    """Its folder is its own; what its killed shim left among the receipts is not."""
    live = kit.launch('chmod 1700 "$TMPDIR"; kill -9 $PPID').go()
    until(lambda: not alive(live.wait("ready").pid), "the end of the shim")
    assert never_started(Path(live.spec.attempt_dir))
    found = journal.entries(live.spec.receipts_root, live.spec.attempt_id)
    assert [one and one.state for one in found] == ["started"]
    other = kit.launch("exit 0")
    other.wait("ready")
    other.shim.close()
    until(lambda: never_started(Path(other.spec.attempt_dir)), "the folder that says so")
    assert journal.entries(other.spec.receipts_root, other.spec.attempt_id) == []


@pytest.mark.parametrize("left", ["reservation", "boot"])
def test_a_folder_alone_proves_nothing(home: Home, left: str) -> None:
    """A shim that was killed may have let it go; of what was before a reboot the disk may know less than was."""
    run = runs.run_of(runs.task(shell="exit 0"))
    crash(home, "_go")
    attempt = runs.attempt_of(run)
    wait(lambda: never_started(attempt_folder(attempt)), "the folder that says so")
    if left == "reservation":
        ReceiptStore(str(receipts_root())).reserve(str(attempt.pk))
        home.session(slots=1)
    else:
        with patch("apps.dispatch.source.boot_id", lambda: "another boot"):
            home.session(slots=1)
    found = runs.fresh(run)
    assert (found.status, found.error_code) == ("lost", "RECOVERY_ATTEMPT_INCOMPLETE")


def test_a_folder_that_was_let_go_or_is_held_proves_nothing(tmp_path: Any) -> None:
    folder = tmp_path / "attempts" / "one"
    files.make_attempt_folder(str(folder))
    assert never_started(folder)
    folder.chmod(0o700)
    assert not never_started(folder)
    assert not never_started(tmp_path / "none")
