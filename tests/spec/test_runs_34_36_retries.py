"""runs.md §19, scenarios 34–36, and 14 carried on: what becomes of lost runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.core import clock
from apps.dispatch.models import RunDispatchLease
from apps.dispatch.services import expiry
from apps.runs import jobs, queries, services
from apps.runs.errors import InvalidRetryPolicy
from apps.runs.models import Run, RunAttempt, RunEvent, RunRetryPolicy
from apps.runs.services import retrying
from apps.tasks.models import Task
from tests.conftest import Time
from tests.runs import kit

pytestmark = pytest.mark.django_db
SAFE = {
    "max_attempts": 3, "retry_on_lost": True, "safety": "idempotent", "backoff_base_ms": 1_000,
    "backoff_max_ms": 5_000,
}  # fmt: skip


def lose(run: Run) -> None:
    """The run's newest attempt begins to run, and its node falls silent."""
    fence = kit.worker()
    lease = kit.claimed(fence, kit.fresh(run))
    kit.advance(fence, lease)
    kit.expire_now(lease)
    kit.silence()
    assert expiry.expire(lease.attempt_id) == "lost"


def policy(run: Run) -> RunRetryPolicy:
    return RunRetryPolicy.objects.get(pk=run.pk)


def waits_ms(run: Run) -> int:
    """How long after its newest attempt's end the run is tried again."""
    at, lost_at = policy(run).next_attempt_at, kit.attempt_of(run).finished_at
    assert at is not None and lost_at is not None
    return (at - lost_at) // timedelta(milliseconds=1)


def state(run: Run) -> tuple[str, str | None]:
    found = kit.fresh(run)
    return found.status, found.error_code


def test_runs_34_lost_retry(time: Time) -> None:
    run = kit.run_of(kit.task(retry=SAFE))
    lose(run)
    assert state(run) == ("lost", "REMOTE_RUN_LEASE_EXPIRED")
    assert retrying.reconcile(run.pk) == "scheduled"
    assert state(run) == ("retry_wait", "RUN_LOST_RETRY_SCHEDULED")
    assert (waits_ms(run), policy(run).version) == (1_000, 1)
    told = RunEvent.objects.get(run=run, type="run.retry_wait")
    assert told.dedupe_key == f"run-lost-retry-scheduled:{kit.attempt_of(run).pk}"
    assert told.payload["max_attempts"] == 3 and told.payload["safety"] == "idempotent"

    time.advance(999)
    assert retrying.reconcile(run.pk) == "not_due"
    time.advance(1)
    before = kit.fresh(run).version
    assert retrying.reconcile(run.pk) == "queued"
    second = kit.attempt_of(run)
    assert (second.attempt, second.status, second.callback_sequence) == (2, "claimed", 0)
    assert (second.executor_handle, second.deadline_at, second.worker_id) == (None, None, None)
    assert not RunDispatchLease.objects.filter(pk=second.pk).exists()
    assert state(run) == ("queued", None) and kit.fresh(run).version == before + 2
    assert kit.events(run)[-2:] == ["run.queued", "attempt.claimed"]
    assert (policy(run).next_attempt_at, policy(run).version) == (None, 2)

    lose(run)
    assert retrying.reconcile(run.pk) == "scheduled" and waits_ms(run) == 2_000
    time.advance(2_000)
    assert retrying.reconcile(run.pk) == "queued"
    lose(run)
    assert retrying.reconcile(run.pk) == "failed"
    assert state(run) == ("failed", "RUN_LOST_RETRY_EXHAUSTED")
    assert kit.fresh(run).finished_at is not None and policy(run).next_attempt_at is None
    assert [row.error_code for row in queries.attempts(run.pk)] == ["REMOTE_RUN_LEASE_EXPIRED"] * 3
    kit.check_history(run)


def test_runs_34_the_wait_is_capped(time: Time) -> None:
    run = kit.run_of(kit.task(retry={**SAFE, "backoff_base_ms": 4_000}))
    for wait in (4_000, 5_000):
        lose(run)
        assert retrying.reconcile(run.pk) == "scheduled" and waits_ms(run) == wait
        time.advance(wait)
        assert retrying.reconcile(run.pk) == "queued"


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (None, "RUN_LOST_RETRY_DISABLED"),
        ({**SAFE, "retry_on_lost": False}, "RUN_LOST_RETRY_DISABLED"),
        ({**SAFE, "max_attempts": 1}, "RUN_LOST_RETRY_DISABLED"),
        ({"max_attempts": 3, "retry_on_failure": True}, "RUN_LOST_RETRY_DISABLED"),
    ],
)
def test_runs_35_no_retry_after_a_loss(rule: Any, code: str) -> None:
    run = kit.run_of(kit.task(retry=rule))
    lose(run)
    assert retrying.reconcile(run.pk) == "failed"
    assert state(run) == ("failed", code)
    assert retrying.reconcile(run.pk) == "not_eligible"
    assert RunAttempt.objects.filter(run=run).count() == 1
    kit.check_history(run)


def test_runs_35_unknown_safety_is_refused_at_admission_and_ends_a_row_that_came_another_way() -> None:
    task = kit.task(retry=SAFE)
    run = kit.run_of(task)
    Task.objects.filter(pk=task.pk).update(retry={**SAFE, "safety": "unknown"})
    with pytest.raises(InvalidRetryPolicy) as caught:
        kit.start(task)
    assert caught.value.code == "invalid_run_retry_policy" and Run.objects.count() == 1
    RunRetryPolicy.objects.filter(pk=run.pk).update(safety="unknown")
    lose(run)
    assert retrying.reconcile(run.pk) == "failed"
    assert state(run) == ("failed", "RUN_LOST_RETRY_UNSAFE")


def test_runs_35_cancelled_while_it_waits() -> None:
    run = kit.run_of(kit.task(retry=SAFE))
    lose(run)
    retrying.reconcile(run.pk)
    assert services.request_cancel(kit.grant("run.stop"), run.pk).outcome == "accepted"
    assert state(run) == ("cancelled", "EXECUTION_CANCELLED")
    assert policy(run).next_attempt_at is None
    assert retrying.reconcile(run.pk) == "not_eligible"
    kit.check_history(run)


def test_runs_35_cancelled_when_lost() -> None:
    run = kit.run_of(kit.task(retry=SAFE))
    lose(run)
    Run.objects.filter(pk=run.pk).update(cancel_requested_at=clock.now(), cancel_reason="user")
    assert retrying.reconcile(run.pk) == "cancelled"
    assert state(run) == ("cancelled", "RUN_CANCELLED_DURING_LOST_RECOVERY")


@pytest.mark.django_db(transaction=True)
def test_runs_35_two_reconcilers_make_one_attempt(seeded: None) -> None:
    run = kit.run_of(kit.task(retry={**SAFE, "backoff_base_ms": 0, "backoff_max_ms": 0}))
    lose(run)
    found = kit.race([lambda: retrying.reconcile(run.pk)] * 2)
    assert sorted(found) in (["queued", "scheduled"], ["not_eligible", "scheduled"]), found
    if "queued" not in found:
        retrying.reconcile(run.pk)
    found = kit.race([lambda: retrying.reconcile(run.pk)] * 2)
    assert found == ["not_eligible"] * 2
    assert RunAttempt.objects.filter(run=run).count() == 2
    kit.check_history(run)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0}, {"max_attempts": 17}, {"backoff_base_ms": 6_000}, {"backoff_max_ms": 86_400_001},
        {"backoff_base_ms": -1}, {"safety": "sure"}, {"version": -1},
    ],
)  # fmt: skip
def test_runs_36_bounds_in_the_database(wrong: dict[str, Any]) -> None:
    run = kit.run_of(kit.task(retry=SAFE))
    with pytest.raises(IntegrityError), transaction.atomic():
        RunRetryPolicy.objects.filter(pk=run.pk).update(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0}, {"max_attempts": 17}, {"backoff_base_ms": 6_000}, {"backoff_max_ms": 86_400_001},
    ],
)  # fmt: skip
def test_runs_36_bounds_at_admission(wrong: dict[str, Any]) -> None:
    task = kit.task()
    Task.objects.filter(pk=task.pk).update(retry={**SAFE, **wrong})
    with pytest.raises(InvalidRetryPolicy):
        kit.start(task)
    assert not Run.objects.exists() and not RunRetryPolicy.objects.exists()


def test_runs_14_a_lost_run_is_decided_once_and_gives_its_place_up() -> None:
    """D7: with no restart; whoever waits behind it goes on at once."""
    task = kit.task(retry=SAFE)
    run, behind = kit.run_of(task), kit.run_of(task)
    lose(run)
    assert kit.fresh(behind).holds_place and not kit.fresh(run).holds_place
    assert jobs.retry_runs({}) == {}
    assert state(run)[0] == "retry_wait"


def test_runs_14_a_retry_waits_for_a_place_as_a_start_does(time: Time) -> None:
    task = kit.task(retry=SAFE)
    run, behind = kit.run_of(task), kit.run_of(task)
    lose(run)
    retrying.reconcile(run.pk)
    time.advance(1_000)
    assert retrying.reconcile(run.pk) == "queued"
    assert not kit.fresh(run).holds_place and kit.holders(task) == 1
    services.request_cancel(kit.grant("run.stop"), behind.pk)
    assert kit.fresh(run).holds_place


def test_candidates_lost_first_then_by_time_page_by_page(time: Time) -> None:
    task = kit.task(concurrency="parallel", max_parallel=9, retry=SAFE)
    waiting = [kit.run_of(task) for _ in range(2)]
    for run in waiting:
        lose(run)
        retrying.reconcile(run.pk)
        time.advance(10)
    lost = [kit.run_of(task) for _ in range(2)]
    for run in lost:
        lose(run)
    assert [c.run_id for c in queries.retry_candidates(clock.now())] == [run.pk for run in lost]
    time.advance(5_000)
    wanted = [(run.pk, "lost") for run in lost] + [(run.pk, "retry_wait") for run in waiting]
    assert [(c.run_id, c.phase) for c in queries.retry_candidates(clock.now())] == wanted
    found, after = [], None
    while page := queries.retry_candidates(clock.now(), after=after, limit=1):
        found += [(c.run_id, c.phase) for c in page]
        after = page[-1].position
    assert found == wanted


def test_what_cannot_be_decided_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """runs.md §10.1: a head that keeps failing is passed by, pass after pass."""
    task = kit.task(concurrency="parallel", max_parallel=64, retry=SAFE)
    broken, good = [kit.run_of(task) for _ in range(3)], kit.run_of(task)
    for run in (*broken, good):
        lose(run)
    RunAttempt.objects.filter(run__in=broken).update(status="failed")
    cursor: Any = {}
    monkeypatch.setattr(jobs, "_ROUNDS", 2)
    monkeypatch.setattr(retrying, "sweep", lambda after: _sweep(after, 1))
    for _ in range(3):
        cursor = jobs.retry_runs(cursor)
    assert state(good)[0] == "retry_wait"
    assert {state(run)[0] for run in broken} == {"lost"}


_sweep = retrying.sweep
