"""approvals.md §13, 30–34: one run, with its receipt, or nothing at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import DatabaseError

from apps.approvals import errors, receipts
from apps.approvals.action_records import receipt_digest
from apps.approvals.actions.run_create import RunCreate, RunEvidence
from apps.approvals.contract import Snapshot
from apps.approvals.models import ApprovedActionPlan, ApprovedRunReceipt
from apps.approvals.plans import Plan
from apps.approvals.services import execution
from apps.approvals.services.run_creation import create_approved_run
from apps.core import clock
from apps.projects.policy import Grant
from apps.runs import payloads
from apps.runs.models import Run, RunAttempt, RunEvent
from apps.runs.services import start_run
from apps.runs.services.places import free
from apps.tasks.models import Task
from apps.vault.models import SealedPayload
from tests.approvals import action_kit, kit
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time
from tests.runs import kit as runs_kit
from tests.runs.kit import thawed


def observe(dispatch: Any) -> tuple[str, str]:
    seen = RunEvidence().observe(action_kit.recovering(dispatch), dispatch.pk, clock.now())
    return seen.finding, seen.result_code


def foreign_run(task: Task, key: str) -> Run:
    """Somebody else's run under a key that only a dispatch should have."""
    grant = Grant.system("default", "run.start", "tests")
    result = start_run(grant, task.pk, trigger_type="manual", idempotency_key=key)
    found: Run = result.run  # type: ignore[union-attr]
    return found


@pytest.mark.django_db
def test_approvals_30_happy_path(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    dispatch = action_kit.handed_over(c, task, input={"tag": "v1"}, args=["--now"], priority=7)
    time.advance(1_000)
    report = action_kit.dispatch_all()
    assert (report.scanned, report.claimed, report.started, report.succeeded) == (1, 1, 1, 1)
    [run] = action_kit.runs()
    row = action_kit.fresh(dispatch)
    assert (row.status, row.last_result_code) == ("succeeded", "approved_run_created")
    assert (run.status, run.trigger_type, run.execution_origin, run.execution_owner) == (
        "queued", "approved_action", "system", "runtime",
    )  # fmt: skip
    assert (run.triggered_by_type, run.triggered_by_id) == c.agent.pair
    assert (run.request_id, run.idempotency_key) == ("r-1", dispatch.pk)
    assert (run.task_id, run.task_revision, run.priority) == (task.pk, "1", 7)
    assert run.created_at == run.queued_at == row.started_at
    assert payloads.open_input(run) == payloads.Given({"tag": "v1"}, ("--now",))
    assert run.holds_place
    [attempt] = RunAttempt.objects.all()
    assert (attempt.run_id, attempt.attempt, attempt.status, attempt.executor_type) == (
        run.pk, 1, "claimed", "local_process",
    )  # fmt: skip
    events = list(RunEvent.objects.order_by("sequence"))
    assert [event.type for event in events] == ["attempt.claimed", "run.queued"]
    assert {(event.actor_type, event.actor_id) for event in events} == {
        ("system", "approved-action-dispatcher")
    }
    runs_kit.check_history(run)
    [receipt] = action_kit.receipts()
    assert receipt.evidence_digest == receipt_digest(receipt)
    assert (receipt.execution_attempt, receipt.execution_version, receipt.resource_id) == (1, 2, run.pk)
    assert receipt.finished_at == receipt.created_at == clock.now()
    control = action_kit.control(dispatch)
    assert (control.status, control.resolution_mutation_id) == ("resolved", row.result_mutation_id)


def test_approvals_30_vectors() -> None:
    plan = Plan("plan:1", "default", "t1", "r1", "local_process", 0)
    assert plan.digest == "e1f532922d248f30d20cd572ed11174ee29e0c721b19a110a92315b55d49b505"
    at = clock.from_ms(1_005)
    receipt = ApprovedRunReceipt(
        dispatch_id="disp-1",
        approval_request_id="apr-1",
        project_id="default",
        action_digest=plan.digest,
        execution_attempt=1,
        execution_version=2,
        started_at=clock.from_ms(1_000),
        idempotency_key="disp-1",
        finished_at=at,
        created_at=at,
    )
    receipt.__dict__["resource_id"] = "run-1"
    assert receipt_digest(receipt) == "72ec2fbd91b6397e66c4a6292c658f77189e239b1793bc3d3d6a9a149fa0fb3e"


@pytest.mark.django_db(transaction=True)
def test_approvals_31_all_or_nothing(seeded: None, time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c, input={"a": 1})
    snapshot = action_kit.started(dispatch)
    sealed = SealedPayload.objects.count()
    with (
        action_kit.failing_to_store(ApprovedRunReceipt, DatabaseError("no")),
        pytest.raises(errors.RunActionRepositoryError),
    ):
        create_approved_run(snapshot, action_kit.plan(dispatch))
    for model in (Run, RunAttempt, RunEvent, ApprovedRunReceipt):
        assert not model.objects.exists()
    assert SealedPayload.objects.count() == sealed
    assert observe(dispatch) == ("missing", "approved_run_receipt_missing")
    create_approved_run(snapshot, action_kit.plan(dispatch))
    assert observe(dispatch) == ("verified_succeeded", "approved_run_receipt_verified")


@pytest.mark.django_db
def test_approvals_32_the_same_again(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    first = create_approved_run(snapshot, action_kit.plan(dispatch))
    time.advance(5_000)
    again = create_approved_run(snapshot, action_kit.plan(dispatch))
    assert (again.run.pk, again.attempt.pk) == (first.run.pk, first.attempt.pk)
    assert len(action_kit.runs()) == len(action_kit.receipts()) == 1


@pytest.mark.django_db(transaction=True)
def test_approvals_32_the_same_at_once(seeded: None) -> None:
    c = kit.cast()
    for number in range(4):
        task = kit.task(f"task {number}", concurrency="parallel", max_parallel=8)
        dispatch = action_kit.handed_over(c, task, f"r-{number}")
        snapshot, plan = action_kit.started(dispatch), action_kit.plan(dispatch)
        found = runs_kit.race([lambda s=snapshot, p=plan: create_approved_run(s, p).run.pk] * 3)
        assert len(set(found)) == 1, found
    assert len(action_kit.runs()) == len(action_kit.receipts()) == 4


@pytest.mark.django_db(transaction=True)
def test_approvals_32_many_of_one_task_at_once(seeded: None) -> None:
    c = kit.cast()
    task = kit.task(concurrency="parallel", max_parallel=2)
    made = [action_kit.started(action_kit.handed_over(c, task, f"r-{n}")) for n in range(4)]
    found = runs_kit.race(
        [lambda s=s: create_approved_run(s, action_kit.plan(s.dispatch)).run.pk for s in made]
    )
    assert len(set(found)) == 4, found
    assert free(Task.objects.get(pk=task.pk)) == 0
    assert sum(run.holds_place for run in action_kit.runs()) == 2


@pytest.mark.django_db
def test_approvals_32_a_foreign_run_is_never_adopted(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    dispatch = action_kit.handed_over(c, task)
    snapshot = action_kit.started(dispatch)
    foreign_run(task, dispatch.pk)
    with pytest.raises(errors.RunActionBindingConflict):
        create_approved_run(snapshot, action_kit.plan(dispatch))
    result = RunCreate().execute(snapshot, dispatch.pk, action_kit.held(snapshot))
    assert (result.outcome, result.code) == ("failed", "approved_run_receipt_conflict")
    assert len(action_kit.runs()) == 1 and not action_kit.receipts()
    assert observe(dispatch) == ("conflict", "approved_run_receipt_conflict")


@pytest.mark.django_db
def test_approvals_32_a_foreign_run_that_comes_between(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    c = kit.cast()
    task = kit.task()
    dispatch = action_kit.handed_over(c, task)
    snapshot = action_kit.started(dispatch)
    foreign_run(task, dispatch.pk)
    look, looked = receipts.run_by_key, []

    def blind_once(found: Any) -> Run | None:
        looked.append(found)
        return None if len(looked) == 1 else look(found)

    monkeypatch.setattr(receipts, "run_by_key", blind_once)
    with pytest.raises(errors.RunActionBindingConflict):
        create_approved_run(snapshot, action_kit.plan(dispatch))
    assert len(action_kit.runs()) == 1 and not action_kit.receipts()


@pytest.mark.django_db
def test_approvals_33_renewed_while_it_runs(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    time.advance(10_000)
    renewed = execution.renew(action_kit.held(snapshot), clock.now())
    assert renewed.execution.version == 3
    control = action_kit.control(dispatch)
    assert (control.execution_version, control.version, control.status) == (3, 1, "armed")
    assert control.next_scan_at == renewed.execution.lease_expires_at
    create_approved_run(snapshot, action_kit.plan(dispatch))
    [receipt] = action_kit.receipts()
    assert receipt.execution_version == 3
    assert observe(dispatch) == ("verified_succeeded", "approved_run_receipt_verified")
    with thawed("approved_run_receipts"):
        receipt.execution_version = 4
        ApprovedRunReceipt.objects.update(execution_version=4, evidence_digest=receipt_digest(receipt))
    assert observe(dispatch) == ("conflict", "approved_run_receipt_conflict")


@pytest.mark.django_db
def test_approvals_33_renewed_after_it_was_made(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    create_approved_run(snapshot, action_kit.plan(dispatch))
    execution.renew(action_kit.held(snapshot), clock.now())
    assert observe(dispatch) == ("verified_succeeded", "approved_run_receipt_verified")


@pytest.mark.django_db
def test_approvals_34_abandoned_while_it_runs(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    time.advance(action_kit.LEASE_MS)
    assert action_kit.close_by_hand(c.admin, dispatch, decision="abandon_unknown").status == "resolved"
    assert action_kit.fresh(dispatch).status == "blocked"
    result = RunCreate().execute(snapshot, dispatch.pk, action_kit.held(snapshot))
    assert (result.outcome, result.code) == ("failed", "approved_run_receipt_conflict")
    with pytest.raises(errors.RunActionBindingConflict):
        create_approved_run(snapshot, action_kit.plan(dispatch))
    assert not action_kit.runs() and not action_kit.receipts()
    with pytest.raises(errors.DispatchFenceRejected):
        execution.complete(action_kit.held(snapshot), "late", "failed", result.code, clock.now())


@pytest.mark.django_db(transaction=True)
def test_approvals_34_abandoned_at_the_same_moment(seeded: None, time: Time) -> None:
    """Either the run was first and the person's word is on record all the same, or there is no run."""
    c = kit.cast()
    for number in range(6):
        dispatch = action_kit.handed_over(c, id=f"r-{number}")
        snapshot, plan = action_kit.started(dispatch), action_kit.plan(dispatch)
        time.advance(action_kit.LEASE_MS)
        made, closed = runs_kit.race(
            [
                lambda s=snapshot, p=plan: kit.outcome(lambda: create_approved_run(s, p)),
                lambda d=dispatch, n=number: (
                    action_kit.close_by_hand(
                        c.admin, d, decision="abandon_unknown", mutation_id=f"m-{n}"
                    ).status
                ),
            ]
        )
        assert closed == "resolved"
        assert made in ("ok", "approved_run_action_binding_conflict")
        assert Run.objects.filter(idempotency_key=dispatch.pk).count() == (made == "ok")
        assert ApprovedRunReceipt.objects.filter(pk=dispatch.pk).count() == (made == "ok")


@pytest.mark.django_db
def test_what_create_approved_run_refuses(time: Time) -> None:
    c = kit.cast()
    dispatch, other = action_kit.handed_over(c), action_kit.handed_over(c, id="r-2")
    snapshot, plan = action_kit.started(dispatch), action_kit.plan(dispatch)
    for wrong in (None, {}, [snapshot], "snapshot"):
        with pytest.raises(errors.InvalidApprovedRunAction):
            create_approved_run(wrong, plan)  # type: ignore[arg-type]
    mixed = Snapshot(other, snapshot.execution)
    leased = Snapshot(other, action_kit.claimed(other).subject)
    for wrong_snapshot, wrong_plan in (
        (mixed, action_kit.plan(other)), (leased, action_kit.plan(other)), (snapshot, action_kit.plan(other)),
    ):  # fmt: skip
        with pytest.raises(errors.RunActionBindingConflict):
            create_approved_run(wrong_snapshot, wrong_plan)
    stale = replace(snapshot)
    stale.execution.lease_token = "b" * 64
    with pytest.raises(errors.RunActionBindingConflict):
        create_approved_run(stale, plan)
    assert not action_kit.runs()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "step", "code"),
    [
        ({"action_type": "other.action"}, "inspect", "approved_run_type_mismatch"),
        ({"action_ref": "plan:none"}, "inspect", "approved_run_plan_missing"),
        ({"approval_request_id": "r-2"}, "inspect", "approved_run_plan_binding_invalid"),
        ({"project_id": "elsewhere"}, "inspect", "approved_run_plan_binding_invalid"),
        ({"action_type": "other.action"}, "execute", "approved_run_fence_invalid"),
        ({"id": "other"}, "execute", "approved_run_fence_invalid"),
        ({"action_ref": "plan:none"}, "execute", "approved_run_plan_disappeared"),
        ({"action_digest": "f" * 64}, "execute", "approved_run_plan_changed"),
        ({"approval_request_id": "r-2"}, "execute", "approved_run_plan_changed"),
    ],
)
def test_result_codes(time: Time, change: dict[str, Any], step: str, code: str) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    for name, value in change.items():
        setattr(snapshot.dispatch, name, value)
    handler = RunCreate()
    if step == "inspect":
        found = handler.inspect(snapshot.dispatch)
        assert found.code == code  # type: ignore[union-attr]
        return
    result = handler.execute(snapshot, snapshot.dispatch.pk, action_kit.held(snapshot))
    assert (result.outcome, result.code) == ("failed", code)
    assert not action_kit.runs()


@pytest.mark.django_db
@pytest.mark.parametrize("wrong", ["key", "owner", "token", "version"])
def test_a_foreign_fence_starts_nothing(time: Time, wrong: str) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    held, key = action_kit.held(snapshot), dispatch.pk
    if wrong == "key":
        key = "other"
    else:
        value: dict[str, Any] = {"owner": "other", "token": "b" * 64, "version": 1}
        held = replace(held, **{"generation" if wrong == "version" else wrong: value[wrong]})
    result = RunCreate().execute(snapshot, key, held)
    assert (result.outcome, result.code) == ("failed", "approved_run_fence_invalid")
    assert not action_kit.runs()


@pytest.mark.django_db
def test_a_damaged_plan_blocks(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    with thawed("approved_action_plans"):
        ApprovedActionPlan.objects.update(task_name="")
    action_kit.dispatch_all()
    row = action_kit.fresh(dispatch)
    assert (row.status, row.last_result_code) == ("blocked", "approved_run_plan_invalid")
    assert not action_kit.runs()
