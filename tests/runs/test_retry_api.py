"""Retries over the API: the rule of a task, a run that waits, its attempts one by one."""

from __future__ import annotations

import pytest

from apps.core import clock
from apps.runs import jobs, queries, services
from apps.runs.models import RunHourTotal
from apps.runs.services import retrying
from tests.conftest import Time
from tests.dispatch.test_retry_on_failure import fail
from tests.people import Api, api, member
from tests.runs import kit

pytestmark = pytest.mark.django_db
TASKS = "projects/default/tasks"


@pytest.fixture
def owner(time: Time) -> Api:
    return api(member("owner"))


def test_a_run_that_waits_and_its_attempts(owner: Api, time: Time) -> None:
    rule = {"max_attempts": 2, "retry_on_failure": True, "backoff_base_ms": 9_000, "backoff_max_ms": 9_000}
    made = owner("POST", TASKS, {"name": "a", "shell": "exit 1", "retry": rule})
    assert made.status_code == 201 and made.json()["retry"] == {
        "retry_on_lost": False, "safety": "unknown", "retry_exit_codes": [], **rule,
    }  # fmt: skip
    run_id = owner("POST", f"{TASKS}/a/runs", {}).json()["id"]
    run = kit.fresh(run_id)
    fail(run, 5)
    shown = owner("GET", f"runs/{run_id}").json()
    again = queries.next_attempts([kit.fresh(run)])[run.pk]
    assert (shown["status"], shown["waiting_for"]) == ("retry_wait", "retry")
    assert shown["next_attempt_at"] == clock.rfc3339(again)
    assert (shown["attempt_count"], shown["exit_code"]) == (1, 5)
    assert shown["error_code"] == "RUN_FAILURE_RETRY_SCHEDULED" and shown["finished_at"] is None

    time.advance(9_000)
    jobs.retry_runs({})
    shown = owner("GET", f"runs/{run_id}").json()
    assert (shown["status"], shown["attempt_count"], shown["exit_code"]) == ("queued", 2, None)
    assert (shown["next_attempt_at"], shown["error_code"]) == (None, None)
    fail(run, 6)
    shown = owner("GET", f"runs/{run_id}").json()
    assert (shown["status"], shown["attempt_count"], shown["exit_code"]) == ("failed", 2, 6)
    attempts = owner("GET", f"runs/{run_id}/attempts").json()["items"]
    assert [(row["attempt"], row["status"], row["exit_code"]) for row in attempts] == [
        (1, "failed", 5),
        (2, "failed", 6),
    ]
    types = [row["type"] for row in owner("GET", f"runs/{run_id}/events").json()["items"]]
    assert types.count("run.retry_wait") == 1 and types.count("attempt.claimed") == 2


def test_a_rule_that_is_not_safe_is_refused(owner: Api) -> None:
    answer = owner(
        "POST", TASKS, {"name": "a", "shell": "b", "retry": {"max_attempts": 2, "retry_on_lost": True}}
    )
    assert (answer.status_code, answer.json()["code"], list(answer.json()["errors"])) == (
        400,
        "invalid",
        ["retry"],
    )


def test_a_stop_ends_the_wait_at_once(owner: Api) -> None:
    rule = {"max_attempts": 2, "retry_on_failure": True, "backoff_base_ms": 1, "backoff_max_ms": 1}
    run = kit.run_of(kit.task(retry=rule))
    fail(run)
    answer = owner("POST", f"runs/{run.pk}/stop", {})
    assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")


def test_a_run_of_several_attempts_is_counted_once_and_without_its_waits(owner: Api, time: Time) -> None:
    rule = {
        "max_attempts": 2,
        "retry_on_failure": True,
        "backoff_base_ms": 600_000,
        "backoff_max_ms": 600_000,
    }
    run = kit.run_of(kit.task(retry=rule))
    fail(run)
    time.advance(600_000)
    assert retrying.reconcile(run.pk) == "queued"
    fence = kit.worker()
    lease = kit.claimed(fence, kit.fresh(run))
    kit.advance(fence, lease)
    time.advance(2_000)
    kit.finish(fence, lease, 0)
    services.fold_totals()
    total = RunHourTotal.objects.get()
    assert (total.status, total.runs, total.duration_ms) == ("succeeded", 1, 2_000)
