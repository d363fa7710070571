"""Policies at admission, and what a due retry finds when its task has changed meanwhile."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from apps.core import clock
from apps.projects.models import Project
from apps.runs import services
from apps.runs.errors import InvalidRetryPolicy, RetryTargetInconsistent
from apps.runs.models import Run, RunRetryPolicy, Skip
from apps.runs.services import places, retrying
from apps.runs.services.start_due import DueStart, start_due
from apps.tasks.models import Task
from tests.conftest import Time
from tests.dispatch.test_retry_on_failure import fail
from tests.runs import kit

pytestmark = pytest.mark.django_db
RULE = {"max_attempts": 3, "retry_on_failure": True, "backoff_base_ms": 1_000, "backoff_max_ms": 1_000}


def due(*tasks: Task) -> list[Any]:
    starts = [DueStart(task.pk, "cron", uuid4(), clock.now(), f"due-{task.pk}") for task in tasks]
    rows = Task.objects.select_related("revision").in_bulk([task.pk for task in tasks])
    with transaction.atomic():
        return start_due("scheduler", starts, rows, clock.now())


def test_runs_of_a_schedule_get_their_policy_too() -> None:
    plain, again = kit.task("plain"), kit.task("again", retry=RULE)
    unsafe = kit.task("unsafe", retry=RULE)
    Task.objects.filter(pk=unsafe.pk).update(retry={"max_attempts": 2, "retry_on_lost": True})
    one, other, refused = due(plain, again, unsafe)
    assert isinstance(one, Run) and not one.may_retry
    assert isinstance(other, Run) and other.may_retry
    assert isinstance(refused, InvalidRetryPolicy)
    found = RunRetryPolicy.objects.get()
    assert (found.run_id, found.max_attempts, found.retry_exit_codes) == (other.pk, 3, [])
    again_same = due(again)
    assert again_same[0].pk == other.pk and RunRetryPolicy.objects.count() == 1


def test_the_policy_is_that_of_the_start_and_a_retry_by_hand_has_its_own() -> None:
    task = kit.task(retry=RULE)
    run = kit.run_of(task)
    Task.objects.filter(pk=task.pk).update(retry=None)
    fail(run)
    assert kit.fresh(run).status == "retry_wait"
    services.request_cancel(kit.grant("run.stop"), run.pk)
    later = services.retry_run(kit.grant("run.retry"), run.pk)
    assert isinstance(later, services.Started) and not later.run.may_retry


@pytest.mark.parametrize("off", ["disabled", "archived", "project"])
def test_a_due_retry_of_a_task_that_is_off_is_cancelled(time: Time, off: str) -> None:
    """The end was settled while somebody switched the task off: neither saw the other."""
    task = kit.task(retry=RULE)
    run = kit.run_of(task)
    fail(run)
    match off:
        case "disabled":
            Task.objects.filter(pk=task.pk).update(enabled=False)
        case "archived":
            Task.objects.filter(pk=task.pk).update(archived_at=clock.now())
        case "project":
            Project.objects.filter(pk="default").update(status="archived")
    time.advance(1_000)
    assert retrying.reconcile(run.pk) == "cancelled"
    found = kit.fresh(run)
    assert (found.status, found.cancel_reason) == ("cancelled", "policy")
    kit.check_history(run)


def test_a_policy_that_vanished_is_for_a_person(time: Time) -> None:
    run = kit.run_of(kit.task(retry=RULE))
    fail(run)
    RunRetryPolicy.objects.filter(pk=run.pk).update(next_attempt_at=None)
    with pytest.raises(RetryTargetInconsistent) as caught:
        retrying.reconcile(run.pk)
    assert caught.value.code == "run_lost_retry_target_inconsistent"
    assert kit.fresh(run).status == "retry_wait" and not retrying.decide(run.pk)


def test_what_is_neither_lost_nor_waits_is_let_be() -> None:
    run = kit.run_of(kit.task(retry=RULE))
    assert retrying.reconcile(run.pk) == "not_eligible"
    assert retrying.reconcile(uuid4()) == "not_found"


def test_a_task_that_skips_starts_meanwhile_and_the_retry_waits_its_turn(time: Time) -> None:
    task = kit.task(retry=RULE, concurrency="skip")
    run = kit.run_of(task)
    fail(run)
    between = kit.run_of(task)
    assert not Skip.objects.exists()
    time.advance(1_000)
    assert retrying.reconcile(run.pk) == "queued"
    assert not kit.fresh(run).holds_place and kit.fresh(between).holds_place
    fail(between, 0)
    assert kit.fresh(run).holds_place


@pytest.mark.django_db(transaction=True)
def test_retries_and_starts_never_take_more_places_than_there_are(seeded: None, time: Time) -> None:
    task = kit.task(retry={**RULE, "backoff_base_ms": 1}, concurrency="parallel", max_parallel=2)
    waiting = [kit.run_of(task) for _ in range(2)]
    for run in waiting:
        fail(run)
    time.advance(1_000)
    calls = [lambda run=run: retrying.reconcile(run.pk) for run in waiting]
    found = kit.race([*calls, *[lambda: kit.run_of(task).pk] * 3])
    assert found[:2] == ["queued"] * 2, found
    assert kit.holders(task) == 2
    places.sweep()
    assert kit.holders(task) == 2
