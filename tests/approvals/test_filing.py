"""Asking to start a task: the server builds plan, preview and digests; the same words find the same request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.approvals import errors, plans, queries, services
from apps.approvals.models import ApprovalRequest, ApprovedActionPlan
from apps.approvals.services import Wish, filing
from apps.core import canonical, clock, control
from apps.core.errors import InvalidInput, NotFound
from apps.projects import policy
from apps.runs.errors import InputTooLarge, TaskArchived, TaskDisabled
from apps.tasks.models import Task
from apps.tasks.services import update_task
from apps.vault.models import SealedPayload
from tests import people
from tests.approvals import kit
from tests.conftest import Time
from tests.runs.kit import race

pytestmark = pytest.mark.django_db


def test_what_is_sealed(time: Time) -> None:
    c = kit.cast()
    task = kit.task(priority=7)
    given = {"input": {"tag": "v2.4-guessable"}, "args": ["--now"]}
    request = kit.filed(c.agent, task, risk="high", expires_in_ms=60_000, **given)
    plan = ApprovedActionPlan.objects.get()
    assert (request.permission, request.action_type, request.risk) == ("run.start", "run.create", "high")
    assert request.action_digest == plan.action_digest == plans.plan_of(plan).digest
    assert request.preview_digest == plan.preview_digest == canonical.sha256(plan.preview)
    assert (plan.task_revision, plan.priority, plan.executor_type) == ("1", 7, "local_process")
    known = plans.given_of(plan)
    assert known is not None and (known.input, known.args) == (given["input"], ("--now",))
    preview = plans.preview_of(plan)
    assert preview is not None and preview["task"]["slug"] == task.slug
    assert preview["expires_at_ms"] == time.ms + 60_000 == clock.to_ms(request.expires_at)
    stored = json.dumps(
        [list(model.objects.values()) for model in (ApprovalRequest, ApprovedActionPlan, SealedPayload)],
        default=str,
    )
    assert "guessable" not in stored and "--now" not in stored
    # The same input has another digest each time, so that nobody can try words against it.
    other = kit.filed(c.agent, task, "r-2", risk="high", expires_in_ms=60_000, **given)
    assert other.action_digest != request.action_digest


def test_the_same_words_again(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    asked: dict[str, Any] = {
        "input": {"a": 1},
        "args": ["x"],
        "priority": 3,
        "risk": "low",
        "expires_in_ms": 60_000,
    }
    first = kit.filed(c.agent, task, **asked)
    time.advance(90_000)
    Task.objects.filter(pk=task.pk).update(enabled=False)
    for reference in (str(task.pk), task.slug):
        wish = Wish(id="r-1", task=reference, **asked)
        again = services.file_request(people.principal(c.agent), "default", wish, origin="tests")
        assert again.existing and again.request == first
    for changed in (
        {"input": {"a": 2}}, {"input": None}, {"args": ["y"]}, {"args": []}, {"priority": None}, {"priority": 4},
        {"risk": "high"}, {"expires_in_ms": 60_001},
    ):  # fmt: skip
        with pytest.raises(errors.MutationConflict):
            kit.filed(c.agent, task, **{**asked, **changed})
    with pytest.raises(errors.MutationConflict):
        kit.filed(c.agent, kit.task("other"), **asked)
    second = people.other_subject("agent")
    people.give(second, "operator")
    with pytest.raises(errors.MutationConflict):
        kit.filed(second, task, **asked)
    assert ApprovedActionPlan.objects.count() == SealedPayload.objects.count() == 1


def test_what_cannot_be_asked_for(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    for wrong, refusal in (
        ({"input": {"a": "x" * 65_536}}, InputTooLarge),
        ({"args": ["a\0"]}, InvalidInput),
        ({"priority": 1_001}, InvalidInput),
        ({"risk": "none"}, errors.InvalidApprovalValue),
        ({"expires_in_ms": 0}, errors.InvalidApprovalValue),
        ({"expires_in_ms": kit.DAY_MS + 1}, errors.InvalidApprovalValue),
        ({"action_type": "task.delete"}, errors.InvalidApprovalValue),
    ):
        with pytest.raises(refusal):
            kit.filed(c.agent, task, **wrong)
    Task.objects.filter(pk=task.pk).update(enabled=False)
    with pytest.raises(TaskDisabled):
        kit.filed(c.agent, task)
    Task.objects.filter(pk=task.pk).update(archived_at=clock.now())
    with pytest.raises(TaskArchived):
        kit.filed(c.agent, task)
    with pytest.raises(NotFound):
        services.file_request(
            people.principal(c.agent), "default", Wish(id="r-1", task="none"), origin="tests"
        )
    assert not ApprovalRequest.objects.exists() and not ApprovedActionPlan.objects.exists()
    assert not SealedPayload.objects.exists()


def test_a_task_of_another_project(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    second = people.project(people.account("stranger"))
    people.give(c.agent, "operator", second)
    with pytest.raises(NotFound):
        services.file_request(
            people.principal(c.agent), second, Wish(id="r-1", task=str(task.pk)), origin="tests"
        )


@pytest.mark.parametrize("role", ["operator", "owner"])
def test_who_may_start_needs_no_approval(time: Time, role: str) -> None:
    person = people.member(role, "paula")
    with pytest.raises(errors.ApprovalPolicyDenied):
        kit.filed(people.subject(person), kit.task())


def test_nobody_buries_the_others(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filing, "MAX_OPEN", 3)
    c = kit.cast()
    task = kit.task()
    for number in range(3):
        kit.filed(c.agent, task, f"r-{number}")
    with pytest.raises(errors.TooManyOpen):
        kit.filed(c.agent, task, "r-3")
    assert kit.filed(c.agent, task, "r-2").pk == "r-2"
    other = people.other_subject("agent")
    people.give(other, "operator")
    kit.filed(other, task, "r-4")
    kit.decide(c.admin, kit.verdict("r-0", decision="rejected"))
    kit.filed(c.agent, task, "r-3")
    time.advance(kit.HOUR_MS)
    kit.filed(c.agent, task, "r-5")


def test_the_largest_input_fits(time: Time) -> None:
    c = kit.cast()
    room = 65_536 - len(canonical.dumps({"input": {"a": ""}, "args": []}))
    kit.filed(c.agent, kit.task(), input={"a": "x" * room})
    assert queries.examine("r-1").status == "pending"


def test_what_was_approved_before(time: Time) -> None:
    c = kit.cast()
    task = kit.task()

    def last(id: str) -> str | None:
        return queries.last_approved_revision(ApprovedActionPlan.objects.get(request_id=id))

    kit.filed(c.agent, task)
    kit.decide(c.admin)
    time.advance(1)
    task = update_task(
        policy.Grant.system("default", "task.update", "tests"), task.pk, task.version, {"env": {"A": "1"}}
    )
    kit.filed(c.agent, task, "r-2")
    kit.decide(c.admin, kit.verdict("r-2", decision="rejected"))
    time.advance(1)
    kit.filed(c.agent, task, "r-3")
    kit.filed(c.agent, kit.task("other"), "r-4")
    assert [last(f"r-{number}") for number in range(1, 5)] == [None, "1", "1", None]


@pytest.mark.django_db(transaction=True)
def test_the_same_words_at_once(seeded: None) -> None:
    c = kit.cast()
    task = kit.task()
    for round in range(4):
        wish = Wish(id=f"r-{round}", task=task.slug, input={"a": 1})
        found = race(
            [lambda w=wish: services.file_request(people.principal(c.agent), "default", w, origin="tests")]
            * 3
        )
        assert sorted(one.existing for one in found) == [False, True, True]
        assert len({one.request.action_digest for one in found}) == 1
    assert ApprovedActionPlan.objects.count() == SealedPayload.objects.count() == 4


def test_from_the_decision_to_the_dispatch_by_the_control_cluster(time: Time) -> None:
    c = kit.cast()
    control.enrol(clock.now())
    control.run_due(clock.now())
    kit.filed(c.agent, kit.task())
    control.run_due(clock.now())
    kit.decide(c.admin)
    assert not kit.dispatches()
    control.run_due(clock.now())
    assert kit.fresh().state == "consumed" and len(kit.executions()) == 1
