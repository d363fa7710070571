"""What starts by itself asks for tasks that need an approval: once for each due time, and never silently."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.approvals import jobs, plans, queries
from apps.approvals.models import ApprovalRequest
from apps.approvals.services import asking
from apps.core import clock
from apps.core.errors import Unavailable
from apps.core.models import ControlJob, Wakeup
from apps.identity.services import set_subject_status
from apps.runs.models import Run, Skip
from apps.runs.services import Alone, door, retrying, start_run
from apps.tasks.models import Task
from apps.tasks.services import update_task
from apps.triggers import due, services
from apps.triggers.api import hooks
from apps.triggers.drafts import TriggerDraft
from apps.triggers.models import Trigger
from tests import people
from tests.approvals import action_kit, kit
from tests.conftest import Time
from tests.dispatch.test_retry_on_failure import fail
from tests.runs.kit import race
from tests.triggers.kit import fire, fresh, grants

pytestmark = pytest.mark.django_db
RULE = {"max_attempts": 3, "retry_on_failure": True, "backoff_base_ms": 1_000, "backoff_max_ms": 1_000}


@pytest.fixture(autouse=True)
def _calm() -> None:
    hooks.calls.clear()
    hooks.guesses.clear()


def made(author: User, task: Task, kind: str = "interval", **values: Any) -> services.Made:
    if kind == "interval":
        values.setdefault("every_ms", 60_000)
    return services.create_trigger(
        people.grant(author, "task.update"), people.grant(author, "run.start"), task.pk,
        TriggerDraft(kind=kind, **values),
    )  # fmt: skip


def call(secret: str | None, body: Any = None, **headers: str) -> Any:
    data = b"" if body is None else json.dumps(body)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Client().post(f"/hooks/{secret}", data, content_type="application/json", headers=sent)


class Scene:
    def __init__(self, kind: str = "interval", **values: Any) -> None:
        self.cast = kit.cast()
        self.task = kit.task(requires_approval=True)
        self.made = made(self.cast.operator, self.task, kind, **values)
        self.trigger = self.made.trigger

    def due(self, time: Time) -> Skip:
        time.advance(60_000)
        assert fire() == 1
        return Skip.objects.order_by("-id")[0]


def test_a_due_time_asks_once_as_who_the_trigger_acts_for(time: Time) -> None:
    scene = Scene(input={"a": 1})
    later = clock.from_ms(time.ms + 600_000)
    ControlJob.objects.create(name=jobs.ASK, due_at=later)
    skip = scene.due(time)
    assert (skip.reason, skip.filing, skip.trigger_id, skip.scheduled_for) == (
        "approval_required", "due", scene.trigger.pk, fresh(scene.trigger).last_fire_at,
    )  # fmt: skip
    assert not Run.objects.exists() and not ApprovalRequest.objects.exists()
    assert ControlJob.objects.get(name=jobs.ASK).due_at == clock.from_ms(time.ms)
    assert Wakeup.objects.filter(pk="control").exists()
    jobs.ask({})
    jobs.ask({})
    request = ApprovalRequest.objects.get()
    skip.refresh_from_db()
    assert (skip.filing, skip.approval_id) == ("filed", request.pk)
    assert request.pk == door.request_id(scene.trigger.pk, str(time.ms))
    assert (request.requested_by_type, request.requested_by_id) == ("user", scene.cast.operator.subject_id)
    assert (request.expires_at - request.requested_at).total_seconds() == 86_400
    plan = queries.plan_of(request)
    assert plan is not None
    given = plans.given_of(plan)
    assert given is not None and given.input == {"a": 1}
    kit.decide(scene.cast.admin, kit.verdict(request.pk))
    jobs.consume({})
    action_kit.dispatch_all()
    assert Run.objects.get().request_id == request.pk
    assert fire() == 0


def test_each_due_time_its_own(time: Time) -> None:
    Scene(misfire="all", catch_up_max=5, misfire_grace_ms=600_000)
    time.advance(180_000)
    assert fire() == 1
    jobs.ask({})
    assert ApprovalRequest.objects.count() == Skip.objects.filter(filing="filed").count() == 3
    assert not Run.objects.exists()


def test_boot_asks_too(time: Time) -> None:
    scene = Scene("boot")
    services.arm_boot(kit.ids.uuid7())
    assert fire() == 1
    jobs.ask({})
    assert ApprovalRequest.objects.get().requested_by_id == scene.cast.operator.subject_id
    assert not Run.objects.exists()


def test_the_author_cannot_approve_it(time: Time) -> None:
    cast = kit.cast()
    task = kit.task(requires_approval=True)
    made(cast.admin, task)
    time.advance(60_000)
    fire()
    jobs.ask({})
    request = ApprovalRequest.objects.get()
    refused = kit.outcome(lambda: kit.decide(cast.admin, kit.verdict(request.pk)))
    assert refused == "approval_self_decision_rejected"


def test_why_it_did_not_run_says_so(time: Time) -> None:
    scene = Scene()
    skip = scene.due(time)

    time.advance(1)

    def told() -> dict[str, Any]:
        return due.timeline(scene.task).items[-1].document()

    assert (told()["status"], told()["reason"], told()["action"]) == ("approval", "due", "none")
    jobs.ask({})
    found = told()
    assert (found["reason"], found["action"], found["approval"]) == (
        "filed",
        "open_approval",
        skip.approval_id,
    )
    api = people.api(scene.cast.operator)
    [shown] = api("GET", "projects/default/skips").json()["items"]
    assert (shown["reason"], shown["approval"], shown["filing"]) == (
        "approval_required", skip.approval_id, "filed",
    )  # fmt: skip
    assert api("GET", f"approvals/{skip.approval_id}").status_code == 200


@pytest.mark.parametrize(
    ("stands", "code"),
    [
        ("role", "approval_policy_denied"), ("disabled", "requester_disabled"), ("task", "task_disabled"),
        ("mark", "approval_policy_denied"), ("many", "approval_requests_open"), ("trigger", "trigger_deleted"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_on_record(time: Time, stands: str, code: str) -> None:
    scene = Scene()
    skip = scene.due(time)
    who = scene.cast.operator
    if stands == "role":
        people.give(who, "viewer", version=2)
    elif stands == "disabled":
        set_subject_status(who.subject_id, 1, "disabled", actor=people.ROOT, origin="tests")
    elif stands == "task":
        Task.objects.update(enabled=False)
    elif stands == "mark":
        Task.objects.update(requires_approval=False)
    elif stands == "many":
        monkey = patch("apps.approvals.services.filing.MAX_OPEN", 0)
        monkey.start()
    else:
        services.delete_trigger(*grants(), scene.task.pk, scene.trigger.pk, fresh(scene.trigger).version)
    try:
        jobs.ask({})
    finally:
        patch.stopall()
    skip.refresh_from_db()
    assert (skip.filing, skip.approval_id) == (code, None)
    assert not ApprovalRequest.objects.exists() and not Run.objects.exists()
    if stands != "trigger":
        time.advance(1)
        entry = due.timeline(Task.objects.get()).items[-1]
        assert (entry.status, entry.reason) == ("approval", code)


def test_storage_that_does_not_answer_loses_nothing(time: Time) -> None:
    scene = Scene()
    skip = scene.due(time)
    with patch.object(asking, "file_for", side_effect=Unavailable):
        jobs.ask({})
    skip.refresh_from_db()
    assert skip.filing == "due"
    jobs.ask({})
    skip.refresh_from_db()
    assert skip.filing == "filed"


def test_a_process_that_dies_after_filing_files_no_second_one(time: Time) -> None:
    scene = Scene()
    skip = scene.due(time)
    with patch.object(door, "settle_filing", side_effect=RuntimeError), pytest.raises(RuntimeError):
        asking.file_due(skip.pk)
    assert not ApprovalRequest.objects.exists(), "both or nothing"
    asking.file_due(skip.pk)
    Skip.objects.filter(pk=skip.pk).update(filing="due")
    assert asking.file_due(skip.pk) == "filed"
    assert ApprovalRequest.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_processes_file_at_once(seeded: None, time: Time) -> None:
    scene = Scene()
    skip = scene.due(time)
    race([lambda: asking.file_due(skip.pk)] * 3)
    jobs.ask({})
    skip.refresh_from_db()
    assert skip.filing == "filed" and ApprovalRequest.objects.count() == 1
    assert scene.trigger.pk == skip.trigger_id


def test_a_pass_over_marked_tasks_takes_no_statement_more(time: Time) -> None:
    """What a due time of a marked task leaves is one row among the pass's records."""

    def statements(task_of: Any) -> int:
        time.advance(60_000)
        with CaptureQueriesContext(connection) as seen:
            fire()
        assert task_of
        return len(seen)

    cast = kit.cast()
    plain = [kit.task(f"plain {n}", concurrency="parallel", max_parallel=50) for n in range(3)]
    for task in plain:
        made(cast.operator, task)
    statements(plain)
    before = statements(plain)
    for n in range(3):
        made(cast.operator, kit.task(f"marked {n}", requires_approval=True))
    statements(plain)
    few = statements(plain)
    for n in range(3, 9):
        made(cast.operator, kit.task(f"marked {n}", requires_approval=True))
    assert statements(plain) == few
    # The records, the job that is made due, and its ring.
    assert few - before <= 6


# Webhooks


def test_a_call_of_a_webhook_asks(time: Time) -> None:
    scene = Scene("webhook", input={"by": "hook"})
    answer = call(scene.made.secret, {"a": 1}, Idempotency_Key="k")
    assert answer.status_code == 202
    body = answer.json()
    request = ApprovalRequest.objects.get()
    assert body == {"run": None, "approval": {"id": request.pk}, "replayed": False}
    again = call(scene.made.secret, {"a": 1}, Idempotency_Key="k")
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert call(scene.made.secret, {"a": 2}, Idempotency_Key="k").status_code == 409
    assert ApprovalRequest.objects.count() == 1
    skip = Skip.objects.filter(filing="filed").get()
    assert (skip.approval_id, skip.trigger_type) == (request.pk, "webhook")
    plan = queries.plan_of(request)
    assert plan is not None
    given = plans.given_of(plan)
    assert given is not None and given.input == {"by": "hook", "a": 1}
    assert call(scene.made.secret).status_code == 202, "without an id each call is its own"
    assert ApprovalRequest.objects.count() == 2 and not Run.objects.exists()
    kit.decide(scene.cast.admin, kit.verdict(request.pk))
    jobs.consume({})
    action_kit.dispatch_all()
    assert Run.objects.get().request_id == request.pk


def test_a_call_that_cannot_ask_is_refused_and_on_record_once(time: Time) -> None:
    scene = Scene("webhook")
    people.give(scene.cast.operator, "viewer", version=2)
    for _ in range(3):
        answer = call(scene.made.secret)
        assert (answer.status_code, answer.json()["code"]) == (409, "approval_required")
        assert answer.json()["reason"] == "approval_policy_denied"
    skip = Skip.objects.get()
    assert (skip.reason, skip.filing, skip.approval_id, skip.count) == (
        "approval_required", "approval_policy_denied", None, 3,
    )  # fmt: skip
    assert not ApprovalRequest.objects.exists() and not Run.objects.exists()


def test_a_webhook_that_was_switched_off_asks_nothing(time: Time) -> None:
    scene = Scene("webhook")
    Trigger.objects.update(enabled=False)
    assert call(scene.made.secret).json()["code"] == "trigger_disabled"
    assert not ApprovalRequest.objects.exists()


# Tries by themselves


def _failed(task: Task, **options: Any) -> Run:
    grant = options.pop("grant", None) or grants()[1]
    run = start_run(grant, task.pk, trigger_type="manual", **options).run  # type: ignore[union-attr]
    fail(run)
    return Run.objects.get(pk=run.pk)


def _mark(task: Task) -> None:
    update_task(grants()[0], task.pk, Task.objects.get(pk=task.pk).version, {"requires_approval": True})


def test_what_ran_before_the_mark_is_not_tried_again(time: Time) -> None:
    task = kit.task(retry=RULE)
    waiting = _failed(task)
    assert waiting.status == "retry_wait"
    other = kit.task("other", retry=RULE)
    going = start_run(grants()[1], other.pk, trigger_type="manual").run  # type: ignore[union-attr]
    _mark(task)
    _mark(other)
    time.advance(2_000)
    assert retrying.reconcile(waiting.pk) == "cancelled"
    fail(going)
    assert Run.objects.get(pk=going.pk).status == "failed", "nor does it wait for it"


def test_what_was_approved_or_started_alone_is_so_with_all_its_attempts(time: Time) -> None:
    c = kit.cast()
    task = kit.task(retry=RULE, requires_approval=True, concurrency="parallel", max_parallel=4)
    action_kit.handed_over(c, task)
    action_kit.dispatch_all()
    approved = Run.objects.get()
    kit.policy_of_project(c.admin, exempt_roles=["admin"])
    alone = _failed(task, grant=people.grant(c.admin, "run.start"), alone=Alone())
    fail(approved)
    time.advance(2_000)
    for run in (approved, alone):
        assert Run.objects.get(pk=run.pk).status == "retry_wait"
        assert retrying.reconcile(run.pk) == "queued"
