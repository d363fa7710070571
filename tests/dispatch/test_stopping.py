"""Stops that reach real processes: with a session, without one, past a frozen shim, never a stranger."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.core import clock
from apps.dispatch import cancellations, jobs, loop, stopping
from apps.dispatch.launcher.client import Handle
from apps.dispatch.launcher.tree import boot_id, read_stat
from apps.dispatch.models import RunDispatchLease
from apps.dispatch.services import cancellation, escaped
from apps.dispatch.services.cancellation import Wanted
from apps.dispatch.stopper import Stopper
from apps.runs import services
from apps.runs.models import Run, RunAttempt, RunEvent
from tests.dispatch.sessions import Home, alive, wait, wait_for
from tests.runs import kit

STOP = "run.stop"


def scripted(home: Home, **task: Any) -> tuple[Run, Path]:
    """A run that writes down its processes and waits."""
    pids = home.path / "pids"
    shell = f"sleep 60 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"
    return kit.run_of(kit.task(shell=shell, **task)), pids


def begun(run: Run, pids: Path) -> list[int]:
    wait_for(run, "running")
    wait(pids.exists, "the script")
    return [int(pid) for pid in pids.read_text().split()]


def delivery(run: Run) -> cancellations.Record:
    found = cancellations.find(run.pk)
    assert found is not None
    return found


def frozen(run: Run) -> int:
    pid = kit.attempt_of(run).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    wait(lambda: (found := read_stat(pid)) is not None and found.state == "T", "the shim to be frozen")
    return pid


def test_with_a_live_session(home: Home) -> None:
    run, pids = scripted(home)
    with home.session_beside():
        found = begun(run, pids)
        services.request_cancel(kit.grant(STOP), run.pk)
        assert wait_for(run).status == "cancelled"
        assert not any(alive(pid) for pid in found)
    told = delivery(run)
    assert (told.status, told.last_result, told.dispatch_count) == ("dispatched", "termination_requested", 1)
    kinds = kit.events(run)
    assert kinds.index("run.cancel_requested") < kinds.index("run.cancel_dispatched")
    proof = cancellations.proofs(run.pk)[kit.attempt_of(run).pk]
    assert (proof["cause"], proof["killed"], proof["escaped"]) == ("stop", False, [])
    assert proof["processes"] >= 2 and 0 <= proof["took_ms"] < 5_000
    kit.check_history(run)


def test_while_no_session_lives(home: Home) -> None:
    run, pids = scripted(home)
    first = home.worker()
    found = begun(run, pids)
    home.kill(first)
    services.request_cancel(kit.grant(STOP), run.pk)
    assert cancellations.find(run.pk) is None and all(alive(pid) for pid in found)
    with home.session_beside():
        assert wait_for(run).status == "cancelled"
    assert (delivery(run).status, delivery(run).dispatch_count) == ("dispatched", 1)
    assert not any(alive(pid) for pid in found)
    kit.check_history(run)


def test_a_session_that_died_with_the_claim_is_followed(home: Home) -> None:
    run, pids = scripted(home)
    first = home.worker()
    begun(run, pids)
    home.kill(first)
    services.request_cancel(kit.grant(STOP), run.pk)
    run = kit.fresh(run)
    assert run.cancel_requested_at is not None
    wanted = Wanted(run.pk, kit.attempt_of(run).pk, run.cancel_requested_at)
    owner = kit.attempt_of(run).worker_id
    assert owner is not None
    taken = cancellation.claim(owner, [wanted], token="t" * 43, lease_ms=700)[run.pk]
    assert taken.outcome == "claimed"
    with home.session_beside():
        assert wait_for(run).status == "cancelled"
    assert (delivery(run).status, delivery(run).dispatch_count) == ("dispatched", 2)


@pytest.mark.parametrize("adopted", [False, True])
def test_a_frozen_shim_is_woken(home: Home, adopted: bool) -> None:
    run, pids = scripted(home)
    if adopted:
        first = home.worker()
        found = begun(run, pids)
        home.kill(first)
    with home.session_beside():
        found = begun(run, pids)
        frozen(run)
        services.request_cancel(kit.grant(STOP), run.pk)
        assert wait_for(run).status == "cancelled"
    assert delivery(run).last_result == "termination_requested"
    assert not any(alive(pid) for pid in found)


@pytest.mark.parametrize("adopted", [False, True])
def test_a_frozen_shim_cannot_outlast_its_deadline(home: Home, adopted: bool) -> None:
    """Nobody enforces the limit until the server asks; the end is the one the shim would have made of it."""
    run, pids = scripted(home, timeout_ms=2_000, kill_grace_ms=500)
    if adopted:
        first = home.worker()
        found = begun(run, pids)
        frozen(run)
        home.kill(first)
    with home.session_beside():
        found = begun(run, pids)
        if not adopted:
            frozen(run)
        deadline = kit.attempt_of(run).deadline_at
        assert deadline is not None
        wait(lambda: clock.now() >= deadline, "the deadline")
        assert kit.fresh(run).status == "running"
        jobs.request_timeouts({})
        assert wait_for(run).status == "timed_out"
    ended = kit.fresh(run)
    assert (ended.cancel_reason, ended.error_code) == ("timeout", "EXECUTION_TIMED_OUT")
    assert kit.events(run).count("run.cancel_requested") == 1
    assert not any(alive(pid) for pid in found)
    kit.check_history(run)


def test_a_session_that_hangs_does_not_keep_its_scripts(home: Home, monkeypatch: Any) -> None:
    run, pids = scripted(home)
    hung = home.worker()
    found = begun(run, pids)
    hung.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(loop, "RENEW_S", 0.2)
    with home.session_beside():
        services.request_cancel(kit.grant(STOP), run.pk)
        time.sleep(1)
        # As long as its lease stands it is the one to deliver.
        assert cancellations.find(run.pk) is None and all(alive(pid) for pid in found)
        past = clock.now()
        RunDispatchLease.objects.filter(run=run).update(
            acquired_at=past - timedelta(2), renewed_at=past - timedelta(1), expires_at=past
        )
        wait(lambda: not any(alive(pid) for pid in found), "the end of the script")
        wait(lambda: delivery(run).lease_owner is None, "the result on record")
        assert delivery(run).last_result == "termination_requested"
    hung.send_signal(signal.SIGCONT)
    home.kill(hung)
    with home.session_beside():
        assert wait_for(run).status == "cancelled"
    kit.check_history(run)


def test_a_pid_that_was_reused_is_never_signalled(home: Home) -> None:
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        run = kit.run_of(kit.task())
        fence = kit.worker()
        kit.advance(fence, kit.claimed(fence, run))
        stat = read_stat(stranger.pid)
        assert stat is not None
        handle = Handle(stranger.pid, stat.start_ticks - 1, boot_id()).encode()
        RunAttempt.objects.filter(run=run).update(executor_handle=handle, pid=stranger.pid)
        services.request_cancel(kit.grant(STOP), run.pk)
        stopper = Stopper(fence.worker_id, {})
        counts = stopping.deliver(fence.worker_id, {"local_process": stopper.tell}, [run.pk])
        assert counts.blocked == 1 and stranger.poll() is None
        assert (delivery(run).status, delivery(run).last_result) == ("blocked", "identity_mismatch")
        assert kit.events(run)[-1] == "run.cancel_dispatch_blocked" and kit.fresh(run).status == "running"
        RunAttempt.objects.filter(run=run).update(pid=stranger.pid + 1)
        reference = cancellations.pending([run.pk]).candidates[0].attempts[0]
        assert stopper.tell(reference, "user") == "pid_mismatch"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_script_that_ignores_term(home: Home) -> None:
    pids = home.path / "pids"
    run = kit.run_of(kit.task(shell=f"trap '' TERM; echo $$ > {pids}; sleep 60", kill_grace_ms=200))
    with home.session_beside():
        wait_for(run, "running")
        wait(lambda: pids.exists() and pids.read_text(), "the script")
        services.request_cancel(kit.grant(STOP), run.pk)
        wait_for(run)
    proof = cancellations.proofs(run.pk)[kit.attempt_of(run).pk]
    assert proof["killed"] and proof["escaped"] == [] and proof["took_ms"] >= 200


def test_a_session_kills_what_escaped(home: Home) -> None:
    left = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        run, pids = scripted(home)
        with home.session_beside():
            begun(run, pids)
            services.request_cancel(kit.grant(STOP), run.pk)
            wait_for(run)
            stat = read_stat(left.pid)
            assert stat is not None
            # As a shim tells of a process that the kernel held.
            event = RunEvent.objects.get(run=run, type="attempt.cancelled")
            payload = event.payload
            payload["stopped"]["escaped"] = [{"pid": left.pid, "start_ticks": stat.start_ticks}]
            event.payload = payload
            with kit.thawed("run_events"):
                event.save()
            RunAttempt.objects.filter(run=run).update(executor_handle=Handle(2, 1, boot_id()).encode())
            wish = escaped.request_kill(kit.grant(STOP), run.pk)
            wait(lambda: left.poll() is not None, "its end")
            wait(lambda: "run.escaped_killed" in kit.events(run), "the record of it")
        wish.refresh_from_db()
        assert wish.outcome == {str(left.pid): "killed"}
    finally:
        left.kill()
        left.wait()


def test_a_ring_right_after_another_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr(cancellations, "wished", lambda _runs: looks.append(now) or [])
    monkeypatch.setattr(escaped, "waiting", lambda _node: [])
    monkeypatch.setattr("apps.dispatch.stopper.time.monotonic", lambda: now)
    now = 100.0
    stopper = Stopper("node:1", {})
    assert stopper.step(True) is None and looks == [100.0]
    now = 100.01
    assert stopper.step(False) is None
    again = stopper.step(True)
    assert again == pytest.approx(100.05) and looks == [100.0]
    assert stopper.step(False) == again  # until it has looked, it asks to be woken
    now = 100.06
    assert stopper.step(False) is None and looks == [100.0, 100.06]
    now = 100.4
    assert stopper.step(False) is None and len(looks) == 2
    now = 100.6
    assert stopper.step(False) is None and len(looks) == 3


def test_a_stop_right_after_another_start_wakes_the_session(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "POLL_S", 60.0)
    monkeypatch.setattr(loop, "RENEW_S", 60.0)
    run, pids = scripted(home)
    with home.session_beside():
        begun(run, pids)
        time.sleep(1.0)  # nothing else wakes the session any more
        kit.run_of(kit.task(shell="sleep 60"))
        time.sleep(0.01)  # the ring of that start has just been answered
        services.request_cancel(kit.grant(STOP), run.pk)
        began = time.monotonic()
        assert wait_for(run).status == "cancelled"
        assert time.monotonic() - began < 15
