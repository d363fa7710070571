"""runs.md, scenarios 19 to 23: results of delivered stops, overflow, redaction, cursors."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.core import canonical, clock
from apps.core.errors import Corrupt, InvalidInput
from apps.dispatch import cancellations, stopping
from apps.dispatch.cancellations import AttemptReference
from apps.dispatch.errors import (
    CancellationBindingConflict,
    CancellationCommandInvalid,
)
from apps.dispatch.models import RunCancellationDispatch
from apps.dispatch.services import cancellation
from apps.runs.models import RunAttempt, RunEvent
from tests.runs import kit
from tests.spec.test_runs_16_23_cancellation import (
    OWNER,
    claim,
    record,
    results,
    running,
)


@pytest.mark.django_db
def test_runs_19_retry_result(time: Any) -> None:
    run = running()
    attempt = kit.attempt_of(run).pk
    assert claim(run).outcome == "claimed"
    now = clock.now()
    waiting = record(run, "dispatch_error", 1, 1_000)
    assert (waiting.status, waiting.next_attempt_at) == ("retry_wait", now + timedelta(seconds=1))
    assert (waiting.last_dispatched_at, waiting.lease_owner, waiting.lease_expires_at) == (now, None, None)
    (event,) = results(run)
    assert (event.type, event.dedupe_key) == ("run.cancel_dispatch_failed", f"cancel-dispatch:{attempt}:1")
    time.advance(999)
    late = claim(run)
    assert late.outcome == "not_due" and late.record == waiting
    time.advance(1)
    assert claim(run).outcome == "claimed"
    without_handle = record(run, "handle_missing", 3, 2_000)
    assert (without_handle.last_dispatched_at, without_handle.last_result) == (now, "handle_missing")
    kit.check_history(run)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("result", "delay"),
    [
        ("dispatch_error", None), ("dispatch_error", 0), ("dispatch_error", 86_400_001), ("unsupported", 1_000),
        ("termination_requested", 1), ("no_such_result", None), ("no_such_result", 1),
    ],
)  # fmt: skip
def test_runs_19_invalid_results(time: Any, result: str, delay: int | None) -> None:
    run = running()
    claim(run)
    with pytest.raises(CancellationCommandInvalid):
        record(run, result, 1, delay)
    with pytest.raises(CancellationCommandInvalid):
        record(run, "already_exited", 0)
    assert cancellations.find(run.pk) == claim(run).record and not results(run)
    assert record(run, "dispatch_error", 1, 86_400_000).status == "retry_wait"


def test_runs_19_delays_grow_to_a_minute() -> None:
    assert [cancellation.retry_delay_ms(count) for count in (1, 2, 3, 6, 7, 40)] == [
        1_000, 2_000, 4_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("result", ["pid_mismatch", "identity_mismatch", "unsupported", "invalid"])
def test_runs_20_blocked(time: Any, result: str) -> None:
    run = running()
    called: list[AttemptReference] = []

    def controller(attempt: AttemptReference, reason: str) -> str:
        called.append(attempt)
        return result

    assert stopping.deliver(OWNER, {"local_process": controller}, [run.pk]).blocked == 1
    (event,) = results(run)
    assert event.type == "run.cancel_dispatch_blocked" and event.payload["result"] == result
    time.advance(86_400_000)
    assert claim(run).outcome == "blocked"
    assert stopping.deliver(OWNER, {"local_process": controller}, [run.pk]).claimed == 0
    assert len(called) == 1 and kit.fresh(run).status == "running"


@pytest.mark.django_db
def test_runs_21_token_redaction(time: Any, caplog: Any) -> None:
    run = running()
    secret = "secret-token-" + "s" * 30
    found = claim(run, token=secret)
    assert found.record is not None and secret not in repr(found)
    digest = found.record.lease_token_digest
    assert digest == canonical.domain_digest("qinglong.cancellation-dispatch-lease.v1", secret)
    assert digest != canonical.sha256(secret) and cancellations.token_digest(secret) == digest
    again = cancellations.find(run.pk)
    assert again == found.record and secret not in json.dumps(asdict(again), default=str)
    row = RunCancellationDispatch.objects.get(pk=run.pk)
    assert secret not in f"{row} {row!r}"
    record(run, "termination_requested", token=secret)
    assert secret not in json.dumps(list(RunEvent.objects.values()), default=str)
    assert secret not in caplog.text
    left = cancellations.find(run.pk)
    assert left is not None and left.lease_token_digest is None


@pytest.mark.django_db
def test_runs_22_unsafe_overflow(time: Any) -> None:
    runs = [running(name=name) for name in ("one", "two", "three")]
    for run, more in zip(runs, (2, 1, 0), strict=True):
        for number in range(2, 2 + more):
            RunAttempt.objects.create(
                run=run, attempt=number, status="running", created_at=clock.now(), executor_handle="h"
            )
    called: list[Any] = []
    page = cancellations.pending([run.pk for run in runs], limit=2)
    assert (page.candidates, page.truncated, page.overflow, page.next_cursor) == ((), True, True, None)

    def controller(attempt: AttemptReference, reason: str) -> str:
        called.append(attempt)
        return "termination_requested"

    counts = stopping.deliver(OWNER, {"local_process": controller}, [run.pk for run in runs], limit=2)
    assert (counts.scanned, counts.next_cursor, called) == (0, None, [])


@pytest.mark.django_db
def test_runs_22_two_active_attempts_are_ambiguous(time: Any) -> None:
    run, plain = running(), running(name="plain")
    RunAttempt.objects.create(
        run=run, attempt=2, status="running", created_at=clock.now(), executor_handle="h"
    )
    told: list[Any] = []

    def controller(attempt: AttemptReference, reason: str) -> str:
        told.append(attempt.attempt_id)
        return "termination_requested"

    counts = stopping.deliver(OWNER, {"local_process": controller}, [run.pk, plain.pk])
    assert (counts.scanned, counts.ambiguous, counts.pending, counts.termination_requested) == (2, 1, 1, 1)
    assert told == [kit.attempt_of(plain).pk] and cancellations.find(run.pk) is None
    # The newest attempt stands first.
    assert [one.attempt_id for one in cancellations.pending([run.pk]).candidates[0].attempts] == list(
        RunAttempt.objects.filter(run=run).order_by("-attempt").values_list("pk", flat=True)
    )


@pytest.mark.django_db
def test_runs_23_cursor_of_the_last_page(time: Any) -> None:
    runs = []
    for name in ("a", "b", "c"):
        runs.append(running(name=name))
        time.advance(1)
    ids_ = [run.pk for run in runs]
    first = cancellations.pending(ids_, limit=2)
    assert [one.run_id for one in first.candidates] == ids_[:2] and first.truncated
    last = cancellations.pending(ids_, limit=2, after=first.next_cursor)
    assert [one.run_id for one in last.candidates] == ids_[2:] and not last.truncated
    assert last.next_cursor == (runs[2].cancel_requested_at, runs[2].pk)
    nothing = cancellations.pending(ids_, limit=2, after=last.next_cursor)
    assert (nothing.candidates, nothing.truncated, nothing.next_cursor) == ((), False, None)
    assert [one.run_id for one in cancellations.pending(limit=128).candidates] == ids_
    for limit in (0, 129):
        with pytest.raises(InvalidInput):
            cancellations.pending(ids_, limit=limit)


@pytest.mark.django_db
def test_a_pass_that_meets_a_damaged_row_serves_the_others(time: Any, caplog: Any) -> None:
    bad, good = running(), running(name="good")
    claim(bad)
    record(bad, "dispatch_error", 1, 1)
    RunCancellationDispatch.objects.filter(pk=bad.pk).update(attempt_id=kit.attempt_of(good).pk)
    time.advance(1)
    with pytest.raises(CancellationBindingConflict):
        claim(bad)
    counts = stopping.deliver(OWNER, {"local_process": lambda *_: "already_exited"}, [bad.pk, good.pk])
    assert (counts.failed, counts.claimed, counts.already_exited) == (1, 1, 1)
    row = RunCancellationDispatch.objects.get(pk=good.pk)
    row.status = "leased"
    with pytest.raises(Corrupt):
        cancellations.record_of(row)


@pytest.mark.django_db
def test_a_pass_without_controller_or_handle_tries_again(time: Any) -> None:
    run = running()
    assert stopping.deliver(OWNER, {}, [run.pk]).pending == 1
    found = cancellations.find(run.pk)
    assert found is not None and found.last_result == "controller_missing"
    assert found.next_attempt_at == clock.now() + timedelta(seconds=1)
    assert stopping.deliver(OWNER, {}, [run.pk]).scanned == 0
    time.advance(1_000)
    RunAttempt.objects.filter(run=run).update(executor_handle=None)
    assert stopping.deliver(OWNER, {"local_process": lambda *_: "already_exited"}, [run.pk]).pending == 1
    found = cancellations.find(run.pk)
    assert found is not None and (found.last_result, found.last_dispatched_at) == ("handle_missing", None)
    time.advance(2_000)
    RunAttempt.objects.filter(run=run).update(executor_handle="h")

    def broken(attempt: AttemptReference, reason: str) -> str:
        raise OSError("no")

    assert stopping.deliver(OWNER, {"local_process": broken}, [run.pk]).pending == 1
    found = cancellations.find(run.pk)
    assert found is not None and (found.last_result, found.dispatch_count) == ("dispatch_error", 3)
    assert found.next_attempt_at == clock.now() + timedelta(seconds=4)
    assert [event.payload["result"] for event in results(run)] == [
        "controller_missing", "handle_missing", "dispatch_error",
    ]  # fmt: skip
    kit.check_history(run)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "broken",
    [
        {"status": "leased"}, {"next_attempt_at": None}, {"last_result": "made_up"}, {"lease_owner": "x"},
        {"status": "blocked", "next_attempt_at": None}, {"status": "other"}, {"version": -1},
    ],
)  # fmt: skip
def test_the_database_refuses_what_does_not_fit(time: Any, broken: dict[str, Any]) -> None:
    run = running()
    now = clock.now()
    values: dict[str, Any] = {
        "attempt_id": kit.attempt_of(run).pk, "status": "pending", "next_attempt_at": now, "created_at": now,
        "updated_at": now, **broken,
    }  # fmt: skip
    with pytest.raises(IntegrityError), transaction.atomic():
        RunCancellationDispatch.objects.create(run_id=run.pk, **values)
