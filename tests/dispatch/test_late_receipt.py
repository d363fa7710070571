"""An end that comes when the attempt was given up already: evidence, never swept away (runs.md §8.5)."""

from __future__ import annotations

from apps.core import clock
from apps.dispatch.models import CompletionReceiptJournal, RunDispatchLease, Worker
from apps.dispatch.services import expiry
from tests.dispatch.sessions import Home, wait, wait_for
from tests.runs import kit


def test_a_session_keeps_the_receipt_of_what_it_no_longer_holds(home: Home) -> None:
    gate = home.path / "gate"
    run = kit.run_of(kit.task(shell=f"while ! test -e {gate}; do sleep 0.02; done"))
    with home.session_beside():
        wait_for(run, "running")
        # The session was silent for so long that its run was given up; it wakes when the script has ended.
        kit.silence()
        ahead = clock.now_ms() + 60_000
        with clock.fixed(lambda: ahead):
            assert expiry.expire(RunDispatchLease.objects.get(run=run).pk) == "lost"
        gate.touch()
        name = str(kit.attempt_of(run).pk)
        wait((home.node / "receipts" / name[-2:] / f"{name}.json").exists, "the receipt")
        wait(lambda: Worker.objects.filter(available_slots=8).exists(), "the session lets go")
    home.session()
    assert kit.fresh(run).status == "lost"
    assert CompletionReceiptJournal.objects.get().state == "quarantined"
    assert (home.node / "receipts" / ".quarantine" / name[-2:] / f"{name}.json").exists()
