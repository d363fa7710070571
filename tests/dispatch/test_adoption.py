"""Scripts that outlive their session: adoption, expiry, drains and damaged receipts (architecture.md §2)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from django.utils import timezone

from apps.core import clock
from apps.dispatch.launching import attempt_folder
from apps.dispatch.models import CompletionReceiptJournal, RunDispatchLease, Worker
from apps.dispatch.receipts import Receipt, ReceiptStore
from apps.dispatch.services import expiry
from apps.runs import services
from apps.runs.models import Run, RunAttempt
from tests.dispatch.sessions import Home, alive, wait, wait_for
from tests.dispatch.test_session import STOP, settled
from tests.runs import kit


def gated(home: Home, name: str = "job", code: int = 5) -> tuple[Run, Path]:
    """A script that runs until its gate file appears, and counts its starts."""
    gate = home.path / f"{name}.gate"
    starts = home.path / f"{name}.starts"
    shell = f"echo x >> {starts}; while [ ! -e {gate} ]; do sleep 0.05; done; exit {code}"
    return kit.run_of(kit.task(name, shell=shell)), gate


def starts(home: Home, name: str = "job") -> int:
    return len((home.path / f"{name}.starts").read_text().split())


def test_killed_worker_and_adoption(home: Home) -> None:
    run, gate = gated(home)
    first = home.worker()
    wait_for(run, "running")
    before = kit.attempt_of(run)
    generation = RunDispatchLease.objects.get(run=run).lease_generation
    home.kill(first)
    home.worker()
    wait(lambda: "run.dispatch_adopted" in kit.events(run), "adoption")
    gate.touch()
    ended = wait_for(run)
    after = kit.attempt_of(run)
    assert (ended.status, after.exit_code, after.pk) == ("failed", 5, before.pk)
    assert after.executor_handle == before.executor_handle
    assert RunDispatchLease.objects.get(run=run).lease_generation == generation + 1
    assert starts(home) == 1 and RunAttempt.objects.filter(run=run).count() == 1
    assert kit.events(run).count("run.failed") == 1
    wait(lambda: not CompletionReceiptJournal.objects.filter(run=run).exists(), "the journal")
    settled(run, home)


def test_a_script_that_ends_while_no_worker_lives(home: Home) -> None:
    run, gate = gated(home, code=0)
    first = home.worker()
    wait_for(run, "running")
    home.kill(first)
    gate.touch()
    attempt = kit.attempt_of(run)
    store = ReceiptStore(str(home.node / "receipts"))
    wait(lambda: store.read(str(attempt.pk)), "the receipt")
    assert kit.fresh(run).status == "running"
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, starts(home)) == ("succeeded", 1)
    settled(run, home)


def test_stop_of_an_adopted_script(home: Home) -> None:
    run, _gate = gated(home)
    first = home.worker()
    wait_for(run, "running")
    home.kill(first)
    services.request_cancel(kit.grant(STOP), run.pk)
    with home.session_beside():
        assert wait_for(run).status == "cancelled"
    settled(run, home)


def test_a_shim_that_was_killed_with_its_session(home: Home) -> None:
    run, gate = gated(home)
    first = home.worker()
    wait_for(run, "running")
    home.kill(first)
    os.kill(kit.attempt_of(run).pid or 0, signal.SIGKILL)
    home.session()
    lost = kit.fresh(run)
    assert (lost.status, lost.error_code) == ("lost", "RECOVERY_PROCESS_EXITED_UNOBSERVED")
    assert not lost.holds_place
    kit.check_history(run)
    # Nobody is left to end the script.
    gate.touch()


def test_a_forged_receipt_ends_one_run_and_no_session(home: Home) -> None:
    receipts = home.node / "receipts"
    # Its own one, before the shim can publish: the name of its folder is the attempt's id.
    shell = (
        'n=$(basename "$(dirname "$QINGLONG_OUTPUT")");'
        f' for d in {receipts}/*; do [ -e "$d"/."$n".*.tmp ] && echo "{{}}" > "$d/$n.json"; done; true'
    )
    forged, honest = kit.run_of(kit.task("forger", shell=shell)), kit.run_of(kit.task("honest"))
    assert home.session() == "idle"
    ended = kit.fresh(honest)
    assert ended.status == "succeeded", (ended.error_code, ended.error_summary)
    assert (kit.fresh(forged).status, kit.attempt_of(forged).status) == ("lost", "lost")
    row = CompletionReceiptJournal.objects.get(run=forged)
    assert row.state == "quarantined" and (receipts / (row.quarantine_ref or "")).exists()
    assert home.session() == "idle"


def test_a_damaged_receipt_of_a_lost_attempt_ends_no_session(home: Home) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    expiry_at = clock.now_ms() + 200_000
    with clock.fixed(lambda: expiry_at):
        assert expiry.expire(lease.attempt_id) == "lost"
    from apps.core import node

    CompletionReceiptJournal.objects.update(node_id=node.node_id())
    name = str(lease.attempt_id)
    file = home.node / "receipts" / name[-2:] / f"{name}.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    assert home.session() == "idle"
    assert not file.exists() and CompletionReceiptJournal.objects.get().state == "quarantined"


def test_what_a_session_left_that_died_after_settling(home: Home) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    kit.finish(fence, lease)
    from apps.core import node

    CompletionReceiptJournal.objects.update(node_id=node.node_id())
    folder = Path(attempt_folder(kit.attempt_of(run)))
    folder.mkdir(parents=True)
    (folder / "input.json").write_text('{"password": "hunter2"}')
    at = clock.now_ms()
    ReceiptStore(str(home.node / "receipts")).publish(
        Receipt(str(run.pk), str(lease.attempt_id), 1, kit.TOKEN, at, at, 0)
    )
    home.session()
    settled(run, home)


def test_a_session_that_lives_looks_after_its_dead_neighbour(home: Home) -> None:
    with home.session_beside():
        wait(lambda: Worker.objects.filter(status="online").exists(), "the survivor")
        Worker.objects.update(available_slots=0, status="draining", drain_requested_at=timezone.now())
        second = home.worker()
        wait(lambda: Worker.objects.count() == 2, "the neighbour")
        # The survivor takes nothing new; the neighbour does, and dies.
        Worker.objects.filter(pk__endswith=":2").update(status="online")
        run, gate = gated(home)
        wait_for(run, "running")
        assert RunDispatchLease.objects.get(run=run).worker_id.endswith(":2")
        home.kill(second)
        gate.touch()
        assert wait_for(run).status == "failed"
    assert starts(home) == 1


def test_expiry_against_a_node_that_is_down(home: Home) -> None:
    run, gate = gated(home)
    home.kill(_carrying(home, run))
    lease = RunDispatchLease.objects.get(run=run)
    ahead = clock.now_ms() + 60_000
    with clock.fixed(lambda: ahead):
        assert expiry.expire(lease.pk) == "node_up"
    assert kit.fresh(run).status == "running"
    ahead += 100_000
    with clock.fixed(lambda: ahead):
        assert expiry.expire(lease.pk) == "lost"
    gate.touch()
    attempt = kit.attempt_of(run)
    store = ReceiptStore(str(home.node / "receipts"))
    wait(lambda: store.read(str(attempt.pk)), "the receipt")
    home.session()
    # The word that came too late is kept as evidence and changes nothing.
    assert kit.fresh(run).status == "lost"
    assert (home.node / "receipts" / ".quarantine").exists()
    kit.check_history(run)


def _carrying(home: Home, run: Run) -> subprocess.Popen[bytes]:
    process = home.worker()
    wait_for(run, "running")
    return process


def test_drain_ends_fast_and_the_script_goes_on(home: Home) -> None:
    run, gate = gated(home)
    process = _carrying(home, run)
    process.send_signal(signal.SIGTERM)
    # The script goes on for as long as its gate is closed, and a resident worker stays for ever.
    assert process.wait(60) == 0
    assert alive(kit.attempt_of(run).pid or 0) and kit.fresh(run).status == "running"
    assert Worker.objects.get().status == "offline"
    gate.touch()
    home.session()
    assert kit.fresh(run).status == "failed" and starts(home) == 1
    settled(run, home)
