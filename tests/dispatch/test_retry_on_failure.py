"""Scripts that fail are tried again as their task says (api.md, "Task"), in real sessions and by the record."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.services import passes
from apps.runs import jobs, payloads, queries, services
from apps.runs.models import Run, RunAttempt, RunEvent, RunHourTotal, RunRetryPolicy
from apps.runs.services import retrying
from apps.triggers import services as triggers
from tests.conftest import Time
from tests.dispatch.sessions import Home
from tests.runs import kit

TWICE = {"max_attempts": 3, "retry_on_failure": True}


def fail(run: Run, exit_code: int = 1, **end: Any) -> None:
    """The newest attempt begins to run and ends with this code."""
    fence = kit.worker()
    lease = kit.claimed(fence, kit.fresh(run))
    kit.advance(fence, lease)
    kit.finish(fence, lease, exit_code, **end)


def state(run: Run) -> tuple[str, str | None]:
    found = kit.fresh(run)
    return found.status, found.error_code


def test_fails_twice_and_succeeds_the_third_time(home: Home) -> None:
    """One session, no housekeeping: what waits for nothing is tried again at once."""
    script = """
        echo "try $QINGLONG_ATTEMPT $RUN_FENCE"
        [ "$QINGLONG_ATTEMPT" = 3 ] || exit 7
        echo 3 > "$QINGLONG_OUTPUT"
    """
    run = kit.run_of(kit.task(shell=script, retry={**TWICE, "max_attempts": 5}))
    home.session()
    assert state(run) == ("succeeded", None)
    attempts = queries.attempts(run.pk)
    assert [(row.attempt, row.status, row.exit_code, row.error_code) for row in attempts] == [
        (1, "failed", 7, "EXECUTION_FAILED"),
        (2, "failed", 7, "EXECUTION_FAILED"),
        (3, "succeeded", 0, None),
    ]
    assert len({row.log_artifact_id for row in attempts}) == 3
    assert home.log_of(run) == f"try 3 {run.pk}:3\n".encode()
    assert payloads.open_output(kit.fresh(run)) == 3
    once = ["run.dispatching", "attempt.starting", "attempt.running", "run.running"]
    again = [*once, "attempt.failed", "run.retry_wait", "run.queued", "attempt.claimed"]
    assert kit.events(run) == [
        "attempt.claimed", "run.queued", *again, *again, *once, "attempt.succeeded", "run.succeeded",
    ]  # fmt: skip
    kit.check_history(run)
    services.fold_totals()
    assert list(RunHourTotal.objects.values_list("status", "runs")) == [("succeeded", 1)]


def test_attempts_come_to_an_end(home: Home) -> None:
    run = kit.run_of(kit.task(shell="exit 3", retry=TWICE))
    home.session()
    assert state(run) == ("failed", "RUN_FAILURE_RETRY_EXHAUSTED")
    assert [row.exit_code for row in queries.attempts(run.pk)] == [3, 3, 3]
    assert not kit.fresh(run).holds_place
    kit.check_history(run)


@pytest.mark.django_db
def test_waits_double_and_the_place_is_free_meanwhile(time: Time) -> None:
    task = kit.task(retry={**TWICE, "backoff_base_ms": 1_000, "backoff_max_ms": 1_500})
    run, behind = kit.run_of(task), kit.run_of(task)
    fail(run)
    assert state(run) == ("retry_wait", "RUN_FAILURE_RETRY_SCHEDULED")
    told = RunEvent.objects.get(run=run, type="run.retry_wait")
    assert told.payload["next_attempt_at_ms"] == clock.now_ms() + 1_000
    assert kit.fresh(behind).holds_place and not kit.fresh(run).holds_place
    kit.finish(*_running(behind))
    for wait in (1_000, 1_500):
        jobs.retry_runs({})
        assert state(run)[0] == "retry_wait"
        time.advance(wait)
        jobs.retry_runs({})
        assert state(run) == ("queued", None) and kit.fresh(run).holds_place
        fail(run)
    assert state(run) == ("failed", "RUN_FAILURE_RETRY_EXHAUSTED")
    assert RunRetryPolicy.objects.get(pk=run.pk).next_attempt_at is None


def _running(run: Run) -> tuple[WorkerFence, LeaseFence]:
    fence = kit.worker()
    lease = kit.claimed(fence, kit.fresh(run))
    kit.advance(fence, lease)
    return fence, lease


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("codes", "code", "status"),
    [([], 1, "queued"), ([], 255, "queued"), ([75], 75, "queued"), ([75], 1, "failed"), ([], 0, "succeeded")],
)
def test_only_the_exit_codes_that_are_named(codes: list[int], code: int, status: str) -> None:
    run = kit.run_of(kit.task(retry={**TWICE, "retry_exit_codes": codes}))
    fail(run, code)
    assert state(run) == (status, "EXECUTION_FAILED" if status == "failed" else None)
    assert RunAttempt.objects.filter(run=run).count() == (2 if status == "queued" else 1)


@pytest.mark.django_db
@pytest.mark.parametrize("rule", [{"max_attempts": 3}, {"max_attempts": 1, "retry_on_failure": True}])
def test_no_retry_unless_it_was_asked_for(rule: dict[str, Any]) -> None:
    run = kit.run_of(kit.task(retry=rule))
    fail(run)
    assert state(run) == ("failed", "EXECUTION_FAILED")


@pytest.mark.django_db
def test_stops_and_time_limits_are_never_tried_again() -> None:
    task = kit.task(retry=TWICE, concurrency="parallel", max_parallel=4)
    stopped, late = kit.run_of(task), kit.run_of(task)
    fence, lease = _running(stopped)
    services.request_cancel(kit.grant("run.stop"), stopped.pk)
    kit.finish(fence, lease, 143)
    fence, lease = _running(late)
    kit.finish(fence, lease, 143, cause="deadline")
    assert (state(stopped)[0], state(late)[0]) == ("cancelled", "timed_out")


@pytest.mark.django_db
@pytest.mark.parametrize("off", ["disable", "archive", "empty", "project"])
def test_d6_what_waits_to_be_tried_again_goes_with_its_task(off: str) -> None:
    task = kit.task(retry={**TWICE, "backoff_base_ms": 60_000, "backoff_max_ms": 60_000})
    run = kit.run_of(task)
    fail(run)
    match off:
        case "disable":
            triggers.set_task_enabled(kit.grant("task.update"), task.pk, task.version, False)
        case "archive":
            triggers.archive_task(kit.grant("task.delete"), task.pk, task.version)
        case "empty":
            assert triggers.empty_queue(kit.grant("run.stop"), task.pk) == 1
        case "project":
            triggers.archive_project(kit.grant("project.manage"), task.project.version)
    assert state(run) == ("cancelled", "EXECUTION_CANCELLED")
    assert RunRetryPolicy.objects.get(pk=run.pk).next_attempt_at is None
    kit.check_history(run)


@pytest.mark.django_db
def test_d6_a_run_that_fails_after_its_task_was_disabled_has_failed() -> None:
    task = kit.task(retry=TWICE)
    run = kit.run_of(task)
    fence, lease = _running(run)
    triggers.set_task_enabled(kit.grant("task.update"), task.pk, task.version, False)
    kit.finish(fence, lease, 1)
    assert state(run) == ("failed", "EXECUTION_FAILED")


@pytest.mark.django_db
def test_a_start_that_replaces_ends_the_wait() -> None:
    task = kit.task(concurrency="replace", retry={**TWICE, "backoff_base_ms": 9, "backoff_max_ms": 9})
    run = kit.run_of(task)
    fail(run)
    assert state(run)[0] == "retry_wait"
    kit.run_of(task)
    assert state(run)[0] == "cancelled"


@pytest.mark.django_db
def test_what_a_failed_attempt_left_is_not_the_runs_output(settings: Any, tmp_path: Any) -> None:
    run = kit.run_of(kit.task(retry=TWICE))
    fail(run, 1, output={"half": True}, has_output=True, output_code="output_invalid")
    found = kit.fresh(run)
    assert (found.status, found.output_ref, found.output_code) == ("queued", None, None)


@pytest.mark.django_db
def test_attempts_that_never_started_do_not_count() -> None:
    run = kit.run_of(kit.task(retry={"max_attempts": 2, "retry_on_failure": True}))
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease, to="starting")
    passes.store(fence, passes.News(unstarted=[lease], slots=8), kit.TTL_MS)
    fail(run)
    assert state(run) == ("queued", None)
    fail(run)
    assert state(run) == ("failed", "RUN_FAILURE_RETRY_EXHAUSTED")
    assert [row.status for row in queries.attempts(run.pk)] == ["lost", "failed", "failed"]


@pytest.mark.django_db
def test_without_a_policy_nothing_is_asked() -> None:
    """A failure without a policy costs what a success does."""
    task = kit.task(concurrency="parallel", max_parallel=8)

    def cost(exit_code: int) -> int:
        fence, lease = _running(kit.run_of(task))
        with CaptureQueriesContext(connection) as seen:
            kit.finish(fence, lease, exit_code)
        assert not any("retry_polic" in query["sql"] for query in seen.captured_queries)
        return len(seen)

    assert cost(1) == cost(0)


@pytest.mark.django_db(transaction=True)
def test_many_reconcilers_make_one_attempt(seeded: None, time: Time) -> None:
    run = kit.run_of(kit.task(retry={**TWICE, "backoff_base_ms": 5, "backoff_max_ms": 5}))
    fail(run)
    time.advance(5)
    found = kit.race([lambda: retrying.reconcile(run.pk)] * 4)
    assert sorted(found) == ["not_eligible"] * 3 + ["queued"]
    assert RunAttempt.objects.filter(run=run).count() == 2
    kit.check_history(run)
