"""A retry after a loss begins on the same node only when nothing of the lost attempt is left (architecture.md §2)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from apps.core import clock
from apps.dispatch.launcher.client import Handle
from apps.dispatch.launcher.tree import boot_id
from apps.dispatch.models import RunDispatchLease
from apps.dispatch.predecessors import Predecessor
from apps.dispatch.services import expiry
from apps.runs import services
from apps.runs.models import Run
from apps.runs.services import retrying
from tests.dispatch.sessions import Home, alive, wait, wait_for
from tests.runs import kit

AGAIN = {"max_attempts": 3, "retry_on_lost": True, "safety": "idempotent"}
# The first attempt goes on for long; the second tells whether it still met the first.
SCRIPT = """
if [ "$QINGLONG_ATTEMPT" = 1 ]; then echo $$ > {pid}; {deaf} for n in $(seq 600); do sleep 0.05; done; fi
if kill -0 $(cat {pid}) 2>/dev/null; then echo two at once; exit 9; fi
echo alone
"""


def lost_with_its_script(home: Home, *, deaf: str = "") -> tuple[Run, int, Path]:
    """A run that was lost with its session while its script runs on; queued anew, and its first script's pid."""
    file = home.path / "pid"
    script = SCRIPT.format(pid=file, deaf=deaf)
    run = kit.run_of(kit.task(shell=script, retry=AGAIN, kill_grace_ms=300))
    session = home.worker()
    wait_for(run, "running")
    pid = int(wait(lambda: file.exists() and file.read_text().strip(), "the first script"))
    home.kill(session)
    later = clock.now_ms() + 200_000
    with clock.fixed(lambda: later):
        assert expiry.expire(RunDispatchLease.objects.get(run=run).pk) == "lost"
        assert retrying.reconcile(run.pk) == "scheduled"
        assert retrying.reconcile(run.pk) == "queued"
    assert alive(pid)
    return run, pid, file


def test_the_lost_script_is_stopped_and_gone_before_the_next_begins(home: Home) -> None:
    run, pid, _file = lost_with_its_script(home, deaf="trap '' TERM;")
    home.session()
    assert kit.fresh(run).status == "succeeded", home.log_of(run)
    assert home.log_of(run) == b"alone\n" and not alive(pid)
    assert kit.attempt_of(run).attempt == 2
    kit.check_history(run)


def test_what_a_killed_shim_left_is_waited_for(home: Home) -> None:
    run, pid, _file = lost_with_its_script(home)
    first = run.attempts.get(attempt=1)
    os.kill(first.pid or 0, signal.SIGKILL)
    wait(lambda: not alive(first.pid or 0), "the end of the shim")
    with home.session_beside() as session:
        wait(lambda: session._sources[0]._behind, "the second attempt to wait")
        assert alive(pid)
        os.kill(pid, signal.SIGKILL)
        assert wait_for(run).status == "succeeded"
    assert home.log_of(run) == b"alone\n"


def test_a_stop_reaches_an_attempt_that_waits_for_its_predecessor(home: Home) -> None:
    run, pid, _file = lost_with_its_script(home)
    first = run.attempts.get(attempt=1)
    os.kill(first.pid or 0, signal.SIGKILL)
    with home.session_beside() as session:
        wait(lambda: session._sources[0]._behind, "the second attempt to wait")
        services.request_cancel(kit.grant("run.stop"), run.pk)
        assert wait_for(run).status == "cancelled"
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_what_took_a_session_of_its_own_is_known_by_the_attempts_mark() -> None:
    before = Predecessor(Handle(2**22 + 1, 1, boot_id()), b"\0RUN_FENCE=here:1\0")
    assert before.gone()
    escaped = subprocess.Popen(["sleep", "60"], env={"RUN_FENCE": "here:1"}, start_new_session=True)
    try:
        wait(lambda: not before.gone(), "the new process to have its environment")
        assert Predecessor(before.handle, b"\0RUN_FENCE=here:2\0").gone()
        assert Predecessor(Handle(escaped.pid, 1, "another boot"), before.mark).gone()
        assert not Predecessor(Handle(escaped.pid, 1, boot_id()), b"\0none\0").gone()
    finally:
        escaped.kill()
        escaped.wait()
    assert before.gone()
