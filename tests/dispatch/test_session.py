"""Real sessions that carry real scripts (architecture.md §2): ends, stops, what a script is given, adoption."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection

from apps.dispatch import loop
from apps.dispatch.launching import attempt_folder
from apps.dispatch.models import CompletionReceiptJournal, RunDispatchLease
from apps.dispatch.receipts import ReceiptStore
from apps.dispatch.services import expiry
from apps.runs import payloads, services
from apps.runs.models import Run, RunEvent
from apps.tasks.models import TaskExecutionRevision
from tests.dispatch.sessions import Home, alive, wait, wait_for
from tests.runs import kit

STOP = "run.stop"


def settled(run: Run, home: Home) -> None:
    """An end leaves a whole history, a completed lease and nothing on disk to be consumed."""
    kit.check_history(run)
    attempt = kit.attempt_of(run)
    assert RunDispatchLease.objects.get(pk=attempt.pk).status == "completed"
    assert not Path(attempt_folder(attempt)).exists()
    assert ReceiptStore(str(home.node / "receipts")).read(str(attempt.pk)) is None
    assert not CompletionReceiptJournal.objects.filter(attempt=attempt).exists()
    assert not kit.fresh(run).holds_place
    kinds = kit.events(run)
    assert len([kind for kind in kinds if kind in ("run.succeeded", "run.failed", "run.cancelled")]) <= 1


@pytest.mark.parametrize(
    ("shell", "status", "code"),
    [
        ("exit 0", "succeeded", 0),
        ("exit 7", "failed", 7),
        ("exit 255", "failed", 255),
        ("kill -9 $$", "failed", 137),
        ("kill -15 $$", "failed", 143),
        ("exec /nowhere/at/all", "failed", 127),
    ],
)
def test_ends(home: Home, shell: str, status: str, code: int) -> None:
    run = kit.run_of(kit.task(shell=shell))
    assert home.session() == "idle"
    ended, attempt = kit.fresh(run), kit.attempt_of(run)
    assert (ended.status, attempt.status, attempt.exit_code) == (status, status, code)
    assert ended.error_code == (None if status == "succeeded" else "EXECUTION_FAILED")
    assert kit.events(run) == [
        "attempt.claimed", "run.queued", "run.dispatching", "attempt.starting", "attempt.running",
        "run.running", f"attempt.{status}", f"run.{status}",
    ]  # fmt: skip
    assert attempt.pid and attempt.executor_handle and attempt.worker_id
    settled(run, home)


def test_a_program_that_is_not_there(home: Home) -> None:
    run = kit.run_of(kit.task(command=["/nowhere/at/all"]))
    home.session()
    assert kit.fresh(run).status == "failed" and kit.attempt_of(run).exit_code == 127
    settled(run, home)


def test_what_a_script_is_given(home: Home) -> None:
    weird = "line 1\nline 2 'quotes' \"double\" $HOME `id` \\ trailing  \n"
    source = (
        "import json, os, sys\n"
        "print(json.dumps({'args': sys.argv[1:], 'env': dict(os.environ),"
        " 'input': json.load(open(os.environ['QINGLONG_INPUT'])), 'cwd': os.getcwd()}))\n"
    )
    task = kit.task(
        script={"language": "python", "source": source, "args": ["own"]},
        env={"WEIRD": weird, "EMPTY": "", "ÜMLAUT": "日本語"},
    )
    run = kit.run_of(task, input={"n": 1, "text": "ä\n"}, args=["a b", "", "$x", "ü"])
    home.session()
    told = json.loads(home.log_of(run))
    assert told["args"] == ["own", "a b", "", "$x", "ü"]
    assert told["input"] == {"n": 1, "text": "ä\n"}
    env = told["env"]
    assert (env["WEIRD"], env["EMPTY"], env["ÜMLAUT"]) == (weird, "", "日本語")
    assert env["QINGLONG_RUN_ID"] == str(run.pk) and env["QINGLONG_TASK"] == task.slug
    assert env["RUN_FENCE"] == f"{run.pk}:1" and env["QINGLONG_TRIGGER"] == "manual"
    assert env["HOME"] == told["cwd"] == str(home.path / "homes" / "default" / str(task.pk))
    allowed = {
        "PATH", "HOME", "LANG", "TZ", "TMPDIR", "PYTHONUNBUFFERED", "QINGLONG_RUN_ID", "QINGLONG_TASK",
        "QINGLONG_PROJECT", "QINGLONG_ATTEMPT", "QINGLONG_TRIGGER", "QINGLONG_INPUT", "QINGLONG_OUTPUT",
        "QINGLONG_ARTIFACTS", "RUN_FENCE", "WEIRD", "EMPTY", "ÜMLAUT", "LC_CTYPE", "PWD", "SHLVL", "_",
    }  # fmt: skip
    assert set(env) <= allowed


@pytest.mark.parametrize(
    ("write", "value", "code"),
    [
        ('printf \'{"n": 1.0, "t": "ä"}\'', {"n": 1, "t": "ä"}, None),
        ("printf 'null'", None, None),
        ("printf ''", None, None),
        ("printf '{not json'", None, "output_invalid"),
        ("printf '[NaN]'", None, "output_invalid"),
        ("printf '1e999'", None, "output_invalid"),
        ("printf '\"\\\\ud800\"'", None, "output_invalid"),
        ('printf \'{"a":1,"a":2}\'', None, "output_invalid"),
        ("printf '\\377'", None, "output_invalid"),
        ("head -c 70000 /dev/zero | tr '\\\\0' 1", None, "output_too_large"),
        ("printf '\"'; head -c 65530 /dev/zero | tr '\\\\0' a; printf '\"'", None, "output_invalid"),
    ],
)
def test_output(home: Home, write: str, value: Any, code: str | None) -> None:
    run = kit.run_of(kit.task(shell=f'{{ {write}; }} > "$QINGLONG_OUTPUT"'))
    home.session()
    ended = kit.fresh(run)
    assert ended.status == "succeeded"
    assert ended.output_code == code
    assert payloads.open_output(ended) == value
    assert (ended.output_ref is not None) == (code is None and write != "printf ''")
    settled(run, home)


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_output_that_is_no_file(home: Home, kind: str) -> None:
    make = {"link": "ln -sf /etc/passwd", "folder": "mkdir", "fifo": "mkfifo"}[kind]
    run = kit.run_of(kit.task(shell=f'rm -f "$QINGLONG_OUTPUT"; {make} "$QINGLONG_OUTPUT"'))
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, ended.output_ref) == ("succeeded", None)
    assert ended.output_code == "output_unsafe"


def test_stop_while_running(home: Home) -> None:
    pids = home.path / "pids"
    shell = f"echo $$ > {pids}; (trap '' TERM; echo $BASHPID; sleep 60) & sleep 60 & echo $! >> {pids}; wait"
    run = kit.run_of(kit.task(shell=shell, kill_grace_ms=200))
    with home.session_beside():
        wait_for(run, "running")
        wait(lambda: pids.exists() and len(pids.read_text().split()) == 2, "the script")
        services.request_cancel(kit.grant(STOP), run.pk, note="enough")
        ended = wait_for(run)
    assert (ended.status, ended.error_code) == ("cancelled", "EXECUTION_CANCELLED")
    assert not any(alive(int(pid)) for pid in pids.read_text().split())
    told = RunEvent.objects.get(run=run, type="attempt.cancelled").payload
    assert told["cause"] == "stop"
    settled(run, home)


def test_timeout(home: Home) -> None:
    run = kit.run_of(kit.task(shell="sleep 60", timeout_ms=1000, kill_grace_ms=100))
    home.session()
    ended, attempt = kit.fresh(run), kit.attempt_of(run)
    assert (ended.status, attempt.status, ended.error_code) == (
        "timed_out",
        "timed_out",
        "EXECUTION_TIMED_OUT",
    )
    assert (ended.cancel_reason, attempt.deadline_at is not None) == ("timeout", True)
    kinds = kit.events(run)
    assert kinds[-3:] == ["run.cancel_requested", "attempt.timed_out", "run.timed_out"]
    settled(run, home)


def test_stop_before_the_start(home: Home) -> None:
    run = kit.run_of(kit.task(shell=f"touch {home.path}/ran"))
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    services.request_cancel(kit.grant(STOP), run.pk)
    assert kit.fresh(run).status == "dispatching"
    kit.expire_now(lease)
    expiry.expire(lease.attempt_id)
    expiry.end_unheld()
    home.session()
    assert kit.fresh(run).status == "cancelled" and not (home.path / "ran").exists()


def test_launch_refused(home: Home) -> None:
    task = kit.task(shell=f"touch {home.path}/ran")
    run = kit.run_of(task)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ALTER TABLE task_execution_revisions DISABLE TRIGGER USER")
        else:
            cursor.execute("SELECT sql FROM sqlite_master WHERE name = 'task_execution_revisions_no_update'")
            trigger = cursor.fetchone()[0]
            cursor.execute("DROP TRIGGER task_execution_revisions_no_update")
        TaskExecutionRevision.objects.update(content_digest="0" * 64)
        if connection.vendor == "postgresql":
            cursor.execute("ALTER TABLE task_execution_revisions ENABLE TRIGGER USER")
        else:
            cursor.execute(trigger)
    home.session()
    ended, attempt = kit.fresh(run), kit.attempt_of(run)
    assert (ended.status, ended.error_code, ended.error_summary) == (
        "failed", "EXECUTOR_START_FAILED", "revision_corrupt",
    )  # fmt: skip
    assert attempt.status == "failed" and attempt.exit_code is None
    assert RunDispatchLease.objects.get(run=run).status == "completed"
    assert not (home.path / "ran").exists()
    assert "attempt.running" not in kit.events(run)
    kit.check_history(run)


def test_queued_runs_follow_each_other_at_once(home: Home) -> None:
    task = kit.task(concurrency="queue")
    runs = [kit.run_of(task) for _ in range(6)]
    with patch.multiple(loop, POLL_S=3600, RENEW_S=3600), home.session_beside():
        wait(lambda: not Run.objects.exclude(status="succeeded").exists(), "all ends, though nothing polls")
    spans = [(kit.fresh(run).started_at, kit.fresh(run).finished_at) for run in runs]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_more_runs_than_slots(home: Home) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    runs = [kit.run_of(task) for _ in range(30)]
    with patch.multiple(loop, POLL_S=3600, RENEW_S=3600), home.session_beside(slots=2):
        wait(lambda: not Run.objects.exclude(status="succeeded").exists(), "all ends, though nothing polls")
    for run in runs:
        settled(run, home)


def test_an_output_whose_key_is_gone_still_ends_its_run(home: Home) -> None:
    run = kit.run_of(kit.task(shell=f'rm {home.path}/keyring.json; echo 1 > "$QINGLONG_OUTPUT"'))
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, ended.output_ref, ended.output_code) == ("succeeded", None, "output_not_sealed")
    settled(run, home)


def test_two_sessions_side_by_side(home: Home) -> None:
    counted = home.path / "count"
    task = kit.task(shell=f'echo "$QINGLONG_RUN_ID" >> {counted}', concurrency="parallel", max_parallel=1000)
    runs = [kit.run_of(task) for _ in range(100)]
    with home.session_beside(), home.session_beside():
        wait(lambda: not Run.objects.exclude(status="succeeded").exists(), "all ends")
    lines = counted.read_text().split()
    assert sorted(lines) == sorted(str(run.pk) for run in runs)
    for run in runs:
        kinds = kit.events(run)
        assert len(kinds) == 8 and kinds.count("run.dispatching") == 1
        kit.check_history(run)
    assert set(RunDispatchLease.objects.values_list("status", flat=True)) == {"completed"}
    assert not CompletionReceiptJournal.objects.exists()
    assert set(RunDispatchLease.objects.values_list("lease_generation", flat=True)) == {1}


def test_a_user_that_is_not_there_starts_nothing(home: Home, settings: Any) -> None:
    settings.RUN_AS = "nobody-of-that-name"
    run = kit.run_of(kit.task(shell="touch ../../../ran"))
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, ended.error_code, ended.error_summary) == (
        "failed", "EXECUTOR_START_FAILED", "run_as_unknown",
    )  # fmt: skip
    assert not (home.path / "ran").exists()


def test_a_limit_that_was_met_is_told(home: Home) -> None:
    task = kit.task(shell="while :; do :; done", limits={"cpu_seconds": 1})
    run = kit.run_of(task)
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, ended.error_code, ended.error_summary) == (
        "failed", "EXECUTION_FAILED", "the limit cpu_seconds was met",
    )  # fmt: skip
    assert RunEvent.objects.get(run=run, type="attempt.failed").payload["limit"] == "cpu_seconds"
