"""What proves that an attempt never started, and what does not (architecture.md §2)."""

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
from apps.dispatch.launching import attempt_folder, receipts_root
from apps.dispatch.receipts import ReceiptStore
from apps.dispatch.services import adoption, passes
from apps.dispatch.source import RunSource
from apps.runs import retries, services
from apps.runs.models import RunAttempt
from tests.dispatch.sessions import Home, wait
from tests.dispatch.shim_kit import Kit, alive, until
from tests.dispatch.test_warm_shims import start
from tests.runs import kit as runs


@pytest.fixture
def kit(tmp_path: Any) -> Any:
    found = Kit(tmp_path)
    yield found
    found.finish()


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
    folder = Path(attempt_folder(runs.attempt_of(run)))
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
    folder = Path(attempt_folder(runs.attempt_of(run)))
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
    wait(lambda: not Path(attempt_folder(runs.attempt_of(run))).exists(), "the folder to go")


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
    folder = Path(attempt_folder(runs.attempt_of(run)))
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
    # The script may be quicker than its shim, which writes `started` after the start; `launching` comes before it.
    assert len(found) == 1 and journal.launched(found)
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
