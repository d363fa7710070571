"""What changes between consuming, looking and doing stops the action, and says so; the task's own rules for places."""

from __future__ import annotations

import pytest

from apps.approvals.actions.run_create import RunCreate
from apps.runs.models import Run, Skip
from apps.tasks.models import Task
from tests.approvals import action_kit, kit
from tests.approvals.test_voiding import a_task, every_change, happens
from tests.conftest import Time
from tests.runs import kit as runs_kit

pytestmark = pytest.mark.django_db


@every_change
def test_after_it_was_consumed(time: Time, name: str) -> None:
    c = kit.cast()
    task = a_task()
    dispatch = action_kit.handed_over(c, task, input={"a": 1})
    code = happens(name, c, task)
    report = action_kit.dispatch_all()
    row = action_kit.fresh(dispatch)
    assert (row.status, row.last_result_code, row.started_at) == ("blocked", code, None)
    assert (report.blocked, report.started) == (1, 0)
    assert not Run.objects.exists()


@every_change
def test_after_the_barrier(time: Time, name: str) -> None:
    c = kit.cast()
    task = a_task()
    dispatch = action_kit.handed_over(c, task, input={"a": 1})
    snapshot = action_kit.started(dispatch)
    code = happens(name, c, task)
    result = RunCreate().execute(snapshot, dispatch.pk, action_kit.held(snapshot))
    assert (result.outcome, result.code) == ("failed", code)
    assert not Run.objects.exists() and not action_kit.receipts()


def test_nothing_changed(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c, a_task(), input={"a": 1})
    action_kit.dispatch_all()
    assert action_kit.fresh(dispatch).status == "succeeded" and len(action_kit.runs()) == 1


def test_an_approved_run_waits_where_others_are_skipped(time: Time) -> None:
    c = kit.cast()
    task = kit.task(concurrency="skip")
    before = runs_kit.run_of(task)
    action_kit.handed_over(c, task)
    assert action_kit.dispatch_all().succeeded == 1
    run = Run.objects.exclude(pk=before.pk).get()
    assert (run.status, run.holds_place) == ("queued", False)
    assert not Skip.objects.exists()


def test_an_approved_run_replaces_as_any_start_of_the_task_does(time: Time) -> None:
    c = kit.cast()
    task = kit.task(concurrency="replace")
    before = runs_kit.run_of(task)
    action_kit.handed_over(c, task)
    assert action_kit.dispatch_all().succeeded == 1
    assert runs_kit.fresh(before).status == "cancelled"
    assert Run.objects.exclude(pk=before.pk).get().holds_place


def test_it_does_not_count_whose_run_it_is(time: Time) -> None:
    """Retrying it later is the retry of whoever asks then: the approval is used up."""
    c = kit.cast()
    task: Task = kit.task()
    dispatch = action_kit.handed_over(c, task)
    action_kit.dispatch_all()
    assert action_kit.dispatch_all().scanned == 0
    from tests import people

    [run] = action_kit.runs()
    answer = people.api(c.agent)("POST", f"runs/{run.pk}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "approval_required")
    again = people.api(c.agent)(
        "POST", f"projects/default/tasks/{task.slug}/runs", {}, Idempotency_Key=dispatch.pk
    )
    assert (again.status_code, again.json()["code"]) == (409, "approval_required")
