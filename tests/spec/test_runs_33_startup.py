"""spec/runs.md §9, §19 scenario 33: what a node finds when it starts again."""

from __future__ import annotations

import os
import signal
from typing import Any
from uuid import UUID

import pytest
from django.urls import reverse

from apps.core import clock, ids, node
from apps.core.errors import InvalidInput
from apps.dispatch import doctor, jobs, recovery
from apps.dispatch.errors import ExpiryTargetInconsistent
from apps.dispatch.launcher.client import Handle
from apps.dispatch.launcher.tree import boot_id
from apps.dispatch.models import EscapedProcesses, RunDispatchLease
from apps.dispatch.presence import Presence
from apps.dispatch.services import adoption, expiry
from apps.dispatch.services import recovery as recovering
from apps.dispatch.source import RunSource
from apps.runs.models import Run, RunAttempt, RunEvent
from tests.dispatch.conftest import home  # noqa: F401
from tests.dispatch.sessions import Home, wait, wait_for
from tests.panel.kit import a_run, a_task, browser
from tests.people import api, member
from tests.runs import kit

ME = node.Process.current()


def gated(home: Home) -> Run:  # noqa: F811
    return kit.run_of(kit.task(shell=f"while [ ! -e {home.path}/gate ]; do sleep 0.05; done"))


def handle(pid: int = ME.pid, ticks: int = ME.started) -> str:
    return Handle(pid, ticks, boot_id()).encode()


def test_runs_33_a_running_process_is_reconciled(home: Home) -> None:  # noqa: F811
    run = gated(home)
    first = home.worker()
    wait_for(run, "running")
    home.kill(first)
    with home.session_beside():
        wait(lambda: "run.reconciled" in kit.events(run), "its being reconciled")
        (home.path / "gate").touch()
        assert wait_for(run).status == "succeeded"
    told = RunEvent.objects.get(run=run, type="run.reconciled")
    assert told.payload == {
        "status": "running", "executor_type": "local_process", "evidence": "durable_handle",
        "version": told.sequence,
    }  # fmt: skip
    attempt = kit.attempt_of(run)
    assert told.dedupe_key == f"primary-running-reconciled:{attempt.pk}:{told.sequence}"
    assert told.actor_type == "reconciler"
    kit.check_history(run)


def test_runs_33_what_cannot_be_verified_is_lost_with_its_reason(home: Home) -> None:  # noqa: F811
    """Each without a receipt; a starting one is incomplete whatever is wrong with it."""
    cases: dict[str, dict[str, Any]] = {
        "RECOVERY_HANDLE_MISSING": {"executor_handle": None, "pid": None},
        "RECOVERY_HANDLE_INVALID": {"executor_handle": "{}"},
        "RECOVERY_IDENTITY_PID_MISMATCH": {"executor_handle": handle(), "pid": ME.pid + 1},
        "RECOVERY_IDENTITY_MISMATCH": {"executor_handle": handle(ticks=ME.started + 1), "pid": ME.pid},
        "RECOVERY_PROCESS_EXITED_UNOBSERVED": {"executor_handle": handle(2**22 + 1), "pid": 2**22 + 1},
    }
    fence = kit.worker(slots=64, node=node.node_id())
    task = kit.task(concurrency="parallel", max_parallel=64)
    runs = {}
    for code, values in cases.items():
        for to in ("running", "starting"):
            run = kit.run_of(task)
            lease = kit.claimed(fence, run)
            kit.advance(fence, lease, to=to)
            RunAttempt.objects.filter(pk=lease.attempt_id).update(**values)
            runs[run] = code if to == "running" else "RECOVERY_ATTEMPT_INCOMPLETE"
    home.session()
    found = {run: (kit.fresh(run).status, kit.fresh(run).error_code) for run in runs}
    assert found == {run: ("lost", code) for run, code in runs.items()}
    for run in runs:
        kit.check_history(run)


def test_runs_33_where_processes_cannot_be_told_apart(monkeypatch: Any) -> None:
    def away(_handle: Handle) -> str:
        raise OSError

    monkeypatch.setattr(recovery.client, "inspect", away)
    attempt = RunAttempt(executor_handle=handle(), pid=ME.pid, status="running")
    assert recovery.examine(attempt).code == "RECOVERY_IDENTITY_UNSUPPORTED"


def test_runs_33_let_go_or_not_is_read_from_the_journal(home: Home, monkeypatch: Any) -> None:  # noqa: F811
    """A session died between the record and the news of the start: what was let go counts as running again."""
    run = gated(home)

    class Dead(BaseException):
        pass

    def die(source: RunSource, item: Any) -> None:
        assert item.shim.go()
        entries = home.node / "receipts"
        wait(lambda: any(b'"started"' in path.read_bytes() for path in entries.rglob(".*.tmp")), "the start")
        raise Dead

    with monkeypatch.context() as patch, pytest.raises(Dead):
        patch.setattr(RunSource, "_go", die)
        home.session()
    assert kit.fresh(run).status == "dispatching"
    with home.session_beside():
        wait_for(run, "running")
        (home.path / "gate").touch()
        assert wait_for(run).status == "succeeded"
    assert kit.events(run).count("attempt.running") == 1


def test_a_frozen_shim_is_woken_to_begin(home: Home, monkeypatch: Any) -> None:  # noqa: F811
    """Handed its run while somebody had stopped it: the session does not wait for ever."""
    from apps.dispatch import loop

    monkeypatch.setattr(loop, "RENEW_S", 0.2)
    go = RunSource._go

    def freeze(source: RunSource, item: Any) -> None:
        os.kill(item.handle.pid, signal.SIGSTOP)
        go(source, item)

    monkeypatch.setattr(RunSource, "_go", freeze)
    run = kit.run_of(kit.task(shell="exit 0"))
    with home.session_beside():
        assert wait_for(run).status == "succeeded"


@pytest.mark.django_db
def test_runs_33_two_active_attempts_stay_untouched(time: Any, settings: Any, tmp_path: Any) -> None:
    settings.NODE_DIR = tmp_path / "node"
    fence = kit.worker(node=node.node_id())
    run = kit.run_of(kit.task())
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    other = RunAttempt.objects.create(
        id=ids.uuid7(),
        run=run,
        attempt=2,
        status="running",
        executor_type="local_process",
        created_at=clock.now(),
    )
    before = kit.fresh(run).version
    assert recovery.ambiguous() == [run.pk]
    assert [one.attempts for one in recovery.under_way().candidates] == [(other.pk, lease.attempt_id)]
    dead = adoption.dead_places(node.node_id(), fence.worker_id, held=[])
    new = kit.worker(node=node.node_id())
    adopted, more = adoption.adopt(new, dead, kit.TTL_MS, 8, lambda _attempt: True)
    assert (adopted, more) == ([], False) and not adoption.orphaned(node.node_id(), [])
    assert recovering.settle_page() is None and not recovering.settle_missing(run.pk)
    kit.expire_now(lease)
    with pytest.raises(ExpiryTargetInconsistent):
        expiry.expire(lease.attempt_id)
    assert (kit.fresh(run).version, kit.fresh(run).status) == (before, "running")
    assert RunDispatchLease.objects.get(run=run).worker_session_id == fence.session_id
    [finding] = doctor._left()
    assert finding.code == "runs_ambiguous" and str(run.pk) in str(finding.sentence)


@pytest.mark.django_db
def test_runs_33_several_attempts_are_shown() -> None:
    ann = member("owner", "ann")
    run = a_run(ann, a_task(ann))
    for ambiguous in (False, True):
        if ambiguous:
            RunAttempt.objects.create(
                id=ids.uuid7(), run=run, attempt=2, status="running", executor_type="local_process",
                created_at=clock.now(),
            )  # fmt: skip
        page = browser(ann).get(reverse("panel:run", args=[run.pk])).content.decode()
        assert ("Several attempts of this run are under way" in page) is ambiguous
        assert api(ann)("GET", f"runs/{run.pk}/attempts").json()["ambiguous"] is ambiguous


@pytest.mark.django_db
def test_runs_33_a_run_without_an_attempt_is_lost(time: Any) -> None:
    fence = kit.worker()
    run = kit.run_of(kit.task())
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    RunAttempt.objects.filter(run=run).update(status="failed", finished_at=clock.now())
    jobs.recover({})
    found = kit.fresh(run)
    assert (found.status, found.error_code, found.holds_place) == ("lost", "RECOVERY_ATTEMPT_MISSING", False)
    assert not recovering.settle_missing(run.pk)
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_23_the_recovery_cursor(time: Any) -> None:
    fence = kit.worker()
    task = kit.task(concurrency="parallel", max_parallel=8)
    runs: list[UUID] = []
    for _number in range(3):
        runs.append(kit.run_of(task).pk)
        kit.claimed(fence, kit.fresh(runs[-1]))
        time.advance(1)
    first = recovery.under_way(limit=2)
    assert [one.run_id for one in first.candidates] == runs[:2] and first.truncated
    last = recovery.under_way(limit=2, after=first.next_cursor)
    assert [one.run_id for one in last.candidates] == runs[2:] and not last.truncated and last.next_cursor
    assert recovery.under_way(after=last.next_cursor).next_cursor is None
    for limit in (0, 129):
        with pytest.raises(InvalidInput):
            recovery.under_way(limit=limit)
    # Five active attempts where two runs can have four at most are not to be trusted.
    for number in range(2, 6):
        RunAttempt.objects.create(
            id=ids.uuid7(), run_id=runs[0], attempt=number, status="claimed", executor_type="local_process",
            created_at=clock.now(),
        )  # fmt: skip
    page = recovery.under_way(limit=2)
    assert (page.candidates, page.overflow, page.truncated, page.next_cursor) == ((), True, True, None)


@pytest.mark.django_db
def test_a_wish_to_kill_brings_up_a_session_of_its_own_node(settings: Any, tmp_path: Any) -> None:
    settings.NODE_DIR = tmp_path / "node"
    presence = Presence(1)
    assert not presence.look()
    attempt = RunAttempt.objects.get(run=kit.run_of(kit.task()))
    wish = EscapedProcesses.objects.create(
        pk=attempt.pk, run_id=attempt.run_id, node_id="b" * 32, boot_id="boot",
        processes=[{"pid": 9, "start_ticks": 1}], requested_at=clock.now(),
    )  # fmt: skip
    assert not presence.look()
    wish.node_id = node.node_id()
    wish.save()
    assert presence.look()
    held = node.claim_slot()
    assert not Presence(1).look()
    held.release()
