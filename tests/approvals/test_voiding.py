"""Whatever would change the action voids the request, at every place where it could go on, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from apps.approvals import errors, jobs, plans, queries, services, standing
from apps.approvals.models import ApprovalLapse, ApprovedActionPlan
from apps.approvals.services import sweeping
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.identity.models import IdentitySubject
from apps.identity.services import set_subject_status
from apps.projects.policy import Grant
from apps.tasks.models import Task
from apps.tasks.services import update_task
from apps.triggers import services as triggers
from apps.vault import keyring
from apps.vault import services as vault
from apps.vault.models import SealedPayload
from tests import people
from tests.approvals import kit
from tests.conftest import Time
from tests.runs.kit import race, thawed


def system(permission: str) -> Grant:
    return Grant.system("default", permission, "tests")


def secret(version: int = 0, value: str = "s3cret") -> None:
    vault.put(system("secret.manage"), "token", value, mutation_id=kit.new_id(), expected_version=version)


def a_task() -> Task:
    secret()
    return kit.task(secrets={"TOKEN": "token"})


def change(**changes: Any) -> Callable[[kit.Cast, Task], Any]:
    return lambda c, task: update_task(system("task.update"), task.pk, task.version, changes)


def archive_project(c: kit.Cast, task: Task) -> None:
    triggers.archive_project(people.grant(people.member("owner", "olga"), "project.manage"), 1)


def disable_agent(c: kit.Cast, task: Task) -> None:
    row = IdentitySubject.objects.get(pk=c.agent.id)
    set_subject_status(row.pk, row.version, "disabled", actor=people.ROOT, origin="tests")


def other_input(c: kit.Cast, task: Task) -> None:
    """Somebody with the keys and the database puts another input in the place of the first."""
    row = SealedPayload.objects.get(purpose=plans.INPUT)
    value = {"input": {"a": 2}, "args": [], "salt": "0" * 32}
    SealedPayload.objects.filter(pk=row.pk).delete()
    plans.sealing.seal(
        plans.INPUT, project_id="default", holder=(row.holder_type, row.holder_id), value=value,
        schema_id=row.schema_id, payload_id=row.pk,
    )  # fmt: skip


CHANGES: dict[str, tuple[str, Callable[[kit.Cast, Task], Any]]] = {
    "body": ("task_revision_changed", change(command=["false"])),
    "environment": ("task_revision_changed", change(env={"A": "1"})),
    "timeout": ("task_revision_changed", change(timeout_ms=1_000)),
    "where it runs": ("task_revision_changed", change(requires={"labels": {"zone": "prod"}})),
    "secret rotated": ("secret_version_changed", lambda c, task: secret(1, "other")),
    "secret disabled": (
        "secret_version_changed",
        lambda c, task: vault.disable(system("secret.manage"), "token", mutation_id="m"),
    ),
    "task disabled": (
        "task_disabled",
        lambda c, task: triggers.set_task_enabled(system("task.update"), task.pk, task.version, False),
    ),
    "task archived": (
        "task_archived",
        lambda c, task: triggers.archive_task(system("task.delete"), task.pk, task.version),
    ),
    "role revoked": ("requester_role_changed", lambda c, task: people.give(c.agent, None, version=2)),
    "role raised": ("requester_role_changed", lambda c, task: people.give(c.agent, "admin", version=2)),
    "role lowered": ("requester_role_changed", lambda c, task: people.give(c.agent, "viewer", version=2)),
    "agent disabled": ("requester_disabled", disable_agent),
    "project archived": ("project_archived", archive_project),
    "input replaced": ("input_changed", other_input),
    "input gone": (
        "input_changed",
        lambda c, task: SealedPayload.objects.filter(purpose=plans.INPUT).delete(),
    ),
}
every_change = pytest.mark.parametrize("name", CHANGES)


def happens(name: str, c: kit.Cast, task: Task) -> str:
    code, apply = CHANGES[name]
    apply(c, Task.objects.get(pk=task.pk))
    return code


def told(code: str, state: str) -> None:
    """Both sides see why, once."""
    [lapse] = ApprovalLapse.objects.all()
    assert (lapse.request_id, lapse.code) == ("r-1", code)
    [entry] = AuditEntry.objects.filter(action="approval.voided")
    assert entry.metadata == {"reason": code, "state": state, "action_type": "run.create"}
    found = queries.find("r-1")
    assert (found.status, found.reason, found.request.state) == ("void", code, state)
    assert code in standing.REASONS


@every_change
@pytest.mark.django_db
def test_before_the_decision(time: Time, name: str) -> None:
    c = kit.cast()
    task = a_task()
    kit.filed(c.agent, task, input={"a": 1})
    code = happens(name, c, task)
    shown = queries.examine("r-1")
    assert (shown.status, shown.reason) == ("void", code)
    page = people.api(c.admin)("GET", "approvals/r-1")
    assert (page.status_code, page.json()["reason"]) == (200, code), "who may decide can read why"
    assert not ApprovalLapse.objects.exists(), "looking writes nothing"
    if name == "project archived":
        with pytest.raises(errors.ApprovalPolicyDenied):
            kit.decide(c.admin)
        sweeping.void_page()
    else:
        with pytest.raises(errors.RequestVoid) as refused:
            kit.decide(c.admin)
        assert refused.value.extra == {"reason": code}
        with pytest.raises(errors.RequestVoid):
            kit.decide(c.admin, kit.verdict(decision="rejected", decision_id="other"))
    assert kit.fresh().state == "pending"
    told(code, "pending")


@every_change
@pytest.mark.django_db
def test_before_it_is_handed_over(time: Time, name: str) -> None:
    c = kit.cast()
    task = a_task()
    kit.filed(c.agent, task, input={"a": 1})
    request = kit.decide(c.admin)
    code = happens(name, c, task)
    refusal = kit.outcome(lambda: services.consume(kit.consumption(request)))
    assert refusal in ("approval_request_void", "approval_policy_denied")
    jobs.consume({})
    assert not kit.dispatches() and kit.fresh().state == "approved"
    told(code, "approved")


@every_change
@pytest.mark.django_db
def test_nobody_touches_it(time: Time, name: str) -> None:
    c = kit.cast()
    task = a_task()
    kit.filed(c.agent, task, input={"a": 1})
    jobs.lapse({})
    assert not ApprovalLapse.objects.exists()
    code = happens(name, c, task)
    cursor = jobs.lapse({})
    told(code, "pending")
    jobs.lapse(cursor or {})
    told(code, "pending")


@every_change
@pytest.mark.django_db
def test_after_it_was_handed_over(time: Time, name: str) -> None:
    """What inspects the action and what creates the run ask the same function, with the task held still."""
    c = kit.cast()
    task = a_task()
    kit.filed(c.agent, task, input={"a": 1})
    services.consume(kit.consumption(kit.decide(c.admin)))
    plan = ApprovedActionPlan.objects.get()
    assert standing.changed(plan, "run.start", lock=True) is None
    code = happens(name, c, task)
    assert standing.changed(plan, "run.start", lock=True) == code


@pytest.mark.django_db
def test_what_is_changed_back_stays_void(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    kit.filed(c.agent, task)
    disabled = triggers.set_task_enabled(system("task.update"), task.pk, task.version, False)
    jobs.lapse({})
    triggers.set_task_enabled(system("task.update"), task.pk, disabled.version, True)
    with pytest.raises(errors.RequestVoid) as refused:
        kit.decide(c.admin)
    assert refused.value.extra == {"reason": "task_disabled"}
    assert queries.examine("r-1").status == "void"


@pytest.mark.django_db
def test_a_role_taken_and_given_back_voids_too(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task())
    people.give(c.agent, None, version=2)
    people.give(c.agent, "operator", version=3)
    with pytest.raises(errors.RequestVoid):
        kit.decide(c.admin)


@pytest.mark.django_db
def test_what_does_not_change_the_action_voids_nothing(time: Time) -> None:
    c = kit.cast()
    task = a_task()
    kit.filed(c.agent, task, input={"a": 1})
    changed = update_task(
        system("task.update"),
        task.pk,
        task.version,
        {"description": "new", "name": "New", "labels": ["x"], "priority": 9},
    )
    assert changed.revision_id == task.revision_id
    people.member("viewer", "vera")
    people.give(c.operator, "viewer", version=2)
    assert kit.decide(c.admin).state == "approved"
    assert services.consume(kit.consumption(kit.fresh())).request.state == "consumed"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changed",
    [
        {"task_revision": "9"}, {"priority": 999}, {"executor_type": "docker"}, {"action_digest": "b" * 64},
        {"preview": '{"task":"another"}'}, {"preview_digest": "b" * 64}, {"input_ref": "input:x"},
        {"request_id": "r-9"},
        {"task_snapshot_ref": "snapshot:x"}, {"schema_version": 1, "task_id": "x" * 255}, {"task_name": "a\x01"},
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_that_somebody_changed(time: Time, changed: dict[str, Any]) -> None:
    """Stored plans cannot be changed; should somebody do it all the same, nothing comes of the request."""
    c = kit.cast()
    kit.filed(c.agent, kit.task(), input={"a": 1})
    with thawed("approved_action_plans"):
        ApprovedActionPlan.objects.update(**changed)
    with pytest.raises(errors.RequestVoid) as refused:
        kit.decide(c.admin)
    assert refused.value.extra == {"reason": "plan_changed"}


@pytest.mark.django_db
def test_keys_that_cannot_be_read_void_nothing(time: Time, settings: Any, tmp_path: Any) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task(), input={"a": 1})
    with_keys, settings.KEYRING_PATH = settings.KEYRING_PATH, tmp_path / "none.json"
    assert kit.outcome(lambda: kit.decide(c.admin)) == "local_secret_unavailable"
    jobs.lapse({})
    assert not ApprovalLapse.objects.exists()
    settings.KEYRING_PATH = with_keys
    assert kit.decide(c.admin).state == "approved"


@pytest.mark.django_db
def test_another_key_for_what_is_sealed_voids_nothing(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task(), input={"a": 1})
    keyring.rotate()
    plans.sealing.reseal()
    assert kit.decide(c.admin).state == "approved"


@pytest.mark.django_db
def test_what_expires_is_written_down_once(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent, "r-0", life_ms=500)
    kit.requested(c.agent, "r-1", life_ms=1_000)
    kit.approved(c, "r-2", life_ms=1_000)
    kit.requested(c.agent, "r-3", life_ms=5_000)
    kit.requested(c.agent, "r-4", life_ms=1_000)
    kit.decide(c.admin, kit.verdict("r-4", decision="rejected"))
    cursor = jobs.lapse({}) or {}
    assert not ApprovalLapse.objects.exists()
    time.advance(1_000)
    cursor = jobs.lapse(cursor) or {}
    assert list(ApprovalLapse.objects.order_by("pk").values_list("pk", "code")) == [
        (f"r-{n}", "expired") for n in range(3)
    ]
    assert AuditEntry.objects.filter(action="approval.expired").count() == 3
    time.advance(4_000)
    jobs.lapse(jobs.lapse(cursor) or {})
    assert AuditEntry.objects.filter(action="approval.expired").count() == 4
    assert queries.find("r-3").reason == "expired"


@pytest.mark.django_db
def test_the_job_hands_over_all_that_is_approved(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    for number in range(70):
        row = kit.filed(c.agent, task, f"r-{number:02}", expires_in_ms=kit.HOUR_MS + number)
        if number % 10:
            type(row).objects.filter(pk=row.pk).update(
                state="approved", version=2, decision="approved", decision_id=row.pk, decision_reason_code="x",
                decided_by_type="user", decided_by_id=c.admin.subject_id, decided_at=clock.now(),
            )  # fmt: skip
    jobs.consume({})
    jobs.consume({})
    assert len(kit.dispatches()) == len(kit.executions()) == 63


@pytest.mark.django_db(transaction=True)
def test_a_change_and_a_decision_at_once(seeded: None) -> None:
    """Either the change came first and voids, or the approval did and consuming finds the change."""
    c = kit.cast()
    for round in range(6):
        task = kit.task(f"t-{round}")
        id = f"r-{round}"
        kit.filed(c.agent, task, id)
        outcomes = race(
            [
                lambda id=id: kit.outcome(lambda: kit.decide(c.admin, kit.verdict(id))),
                lambda task=task: kit.outcome(lambda: change(command=["false"])(c, task)),
            ]
        )
        assert outcomes[1] == "ok" and outcomes[0] in ("ok", "approval_request_void")
    jobs.consume({})
    assert not kit.dispatches()
    assert ApprovalLapse.objects.count() == 6
