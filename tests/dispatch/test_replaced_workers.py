"""A rolling upgrade of two sessions of one node, while runs are queued all the time: none is lost, none runs twice."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from threading import Event, Thread

from django.db import connection

from apps.dispatch.models import CompletionReceiptJournal, RunDispatchLease, Worker
from apps.runs.models import Run
from tests.dispatch.sessions import Home, wait, wait_for
from tests.e2e.up_kit import eventually
from tests.runs import kit


def session(home: Home) -> subprocess.Popen[bytes]:
    """A new session that takes runs."""
    before = Worker.objects.filter(status="online").values_list("session_id", flat=True)
    known = set(before)
    process = home.worker()
    taken = Worker.objects.filter(status="online").exclude(session_id__in=known)
    eventually(taken.exists, "the session", 60)
    return process


def test_sessions_replaced_one_after_another_under_steady_load(home: Home) -> None:
    ran = home.path / "ran"
    quick = kit.task("quick", shell=f'echo "$QINGLONG_RUN_ID" >> {ran}; sleep 0.2', concurrency="parallel",
                     max_parallel=64)  # fmt: skip
    slow = kit.task("slow", shell=f'echo "$QINGLONG_RUN_ID" >> {ran}; sleep 4', concurrency="parallel",
                    max_parallel=64)  # fmt: skip
    runs: list[Run] = []
    stop = Event()

    def feed() -> None:
        try:
            while not stop.is_set():
                runs.append(kit.run_of(slow if len(runs) % 10 == 0 else quick))
                stop.wait(0.1)
        finally:
            connection.close()

    feeder = Thread(target=feed)
    old = [session(home), session(home)]
    feeder.start()
    try:
        ends = []
        for process in old:
            wait(lambda: Run.objects.filter(status="running", task=slow).exists(), "something long to run")
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            ends.append(time.monotonic() - begun)
            session(home)
    finally:
        stop.set()
        feeder.join()
    assert len(runs) > 20 and max(ends) < 8, (len(runs), ends)
    for run in runs:
        assert wait_for(run).status == "succeeded"
        kit.check_history(run)
        assert kit.attempt_of(run).attempt == 1 and kit.events(run).count("attempt.succeeded") == 1
    assert Counter(ran.read_text().split()) == {str(run.pk): 1 for run in runs}
    assert any("run.dispatch_adopted" in kit.events(run) for run in runs)
    wait(lambda: not CompletionReceiptJournal.objects.exists(), "every receipt to be consumed")
    assert not RunDispatchLease.objects.filter(status="leased").exists()
