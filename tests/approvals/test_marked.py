"""A task that needs an approval whoever starts it: the mark, the one door, and the ways past it that a project lets."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.approvals import jobs, services
from apps.approvals.models import ApprovalRequest
from apps.approvals.services import Wish
from apps.audit.models import AuditEntry
from apps.core import clock, ids
from apps.core.errors import Forbidden, InvalidInput
from apps.projects import policy
from apps.projects.errors import ApprovalRequired
from apps.runs.models import AloneStart, Run
from apps.runs.services import Alone, door, retry_run, start_run
from apps.runs.services.door import Approved
from apps.tasks.errors import MarkKept
from apps.tasks.models import Task
from apps.tasks.services import clear_approval_mark, copy_task, reuse_revision, update_task
from tests import people
from tests.approvals import action_kit, kit
from tests.conftest import Time
from tests.people import Api
from tests.runs.kit import race

pytestmark = pytest.mark.django_db


def marked(name: str = "deploy", **options: Any) -> Task:
    return kit.task(name, requires_approval=True, **options)


def fresh(task: Task) -> Task:
    return Task.objects.get(pk=task.pk)


def mark(task: Task, value: bool | None = True) -> Task:
    grant = policy.Grant.system("default", "task.update", "tests")
    return update_task(grant, task.pk, fresh(task).version, {"requires_approval": value})


def start(who: Any, task: Task, **options: Any) -> Any:
    return start_run(people.grant(who, "run.start"), task.pk, trigger_type="manual", **options)


def execute() -> None:
    jobs.consume({})
    jobs.cycle.cache_clear()
    jobs.execute({})


# The mark


def test_whoever_may_change_a_task_may_mark_it() -> None:
    operator = people.member("operator", "opal")
    api = people.api(operator)
    made = api("POST", "projects/default/tasks", {"name": "Deploy", "command": ["true"]}).json()
    assert made["requires_approval"] is False
    path = "projects/default/tasks/deploy"
    answer = api("PATCH", path, {"requires_approval": True}, If_Match='"1"')
    assert answer.json()["requires_approval"] is True
    assert (
        AuditEntry.objects.filter(action="task.approval_required", actor_id=operator.subject_id).count() == 1
    )
    for value in (False, None):
        answer = api("PATCH", path, {"requires_approval": value}, If_Match='"2"')
        assert (answer.status_code, answer.json()["code"]) == (403, "requires_approval_kept")
    assert (
        api("PATCH", path, {"name": "Deployment", "requires_approval": True}, If_Match='"2"').status_code
        == 200
    )
    assert Task.objects.get().requires_approval


def test_only_who_manages_rights_takes_it_back() -> None:
    task = marked()
    owner, path = people.member("owner", "olga"), "projects/default/tasks/deploy/requires-approval"
    for role in ("operator", "viewer"):
        assert people.api(people.member(role))("DELETE", path, If_Match='"1"').status_code == 403
    assert people.api(owner, "*")("DELETE", path, If_Match='"1"').status_code == 403
    assert people.api(owner, "task.update", "run.start")("DELETE", path, If_Match='"1"').status_code == 403
    agent = people.other_subject("agent")
    people.give(agent, "owner")
    assert people.api(agent)("DELETE", path, If_Match='"1"').json()["code"] == "approval_required"
    browser = Api(client=people.signed_in(owner))
    people.age_sign_ins()
    assert browser("DELETE", path, If_Match='"1"').json()["code"] == "session_not_fresh"
    assert fresh(task).requires_approval
    with pytest.raises(Forbidden):
        clear_approval_mark(people.grant(owner, "task.update"), task.pk, 1)
    assert people.api(owner)("DELETE", path, If_Match='"7"').json()["code"] == "version_conflict"
    answer = people.api(owner, "policy.manage")("DELETE", path, If_Match='"1"')
    assert (answer.status_code, answer.json()["requires_approval"], answer.json()["version"]) == (
        200,
        False,
        2,
    )
    assert AuditEntry.objects.get(action="task.approval_cleared").actor_id == owner.subject_id
    assert people.api(owner)("DELETE", path, If_Match='"2"').json()["version"] == 2, "nothing to take back"


def test_no_change_takes_the_mark_along() -> None:
    task = marked(env={"A": "1"})
    owner = people.member("owner", "olga")
    update, create = people.grant(owner, "task.update"), people.grant(owner, "task.create")
    assert copy_task(create, task.pk).requires_approval
    update_task(update, task.pk, 1, {"env": {"A": "2"}, "name": "Other", "concurrency": "skip"})
    first = task.revision.task_revision
    reuse_revision(update, task.pk, 2, first)
    assert fresh(task).requires_approval
    with pytest.raises(MarkKept):
        update_task(update, task.pk, 3, {"requires_approval": False, "env": {}})
    assert fresh(task).version == 3


# The door


@pytest.mark.parametrize("role", ["owner", "admin", "operator"])
def test_nobody_starts_it_alone(role: str) -> None:
    task, who = marked(), people.member(role)
    told = people.api(who)("POST", "projects/default/tasks/deploy/runs", {"input": {"a": 1}})
    assert told.status_code == 409
    body = told.json()
    assert (body["code"], body["permission"], body["action_type"], body["ask_at"]) == (
        "approval_required", "run.start", "run.create", "/projects/default/approvals",
    )  # fmt: skip
    for alone in (None, Alone(), Alone("it burns")):
        with pytest.raises(ApprovalRequired):
            start(who, task, alone=alone)
    assert not Run.objects.exists() and not AloneStart.objects.exists()


def test_no_system_start_and_no_forged_evidence(time: Time) -> None:
    task, c = marked(), kit.cast()
    grant = policy.Grant.system("default", "run.start", "scheduler")
    agent = c.agent
    for approved in (None, Approved("r-1", agent, task.revision.task_revision, clock.now())):
        for key in (None, "anything"):
            with pytest.raises(ApprovalRequired):
                start_run(
                    grant, task.pk, trigger_type="approved_action", approved=approved, idempotency_key=key,
                    alone=Alone("x"),
                )  # fmt: skip
    # A consumed approval of another task, of another input, or of a dispatch that has not passed its barrier.
    other = action_kit.handed_over(c, marked("other"))
    kit.filed(agent, task, "r-2", input={"a": 1})
    mine = action_kit.consumed(kit.decide(c.admin, kit.verdict("r-2")))
    behind = action_kit.started(other)
    forged = Approved("r-1", agent, task.revision.task_revision, behind.execution.started_at or clock.now())
    for key, approved, given in (
        (other.pk, forged, None),
        (mine.pk, Approved("r-2", agent, task.revision.task_revision, clock.now()), {"a": 1}),
    ):
        with pytest.raises(ApprovalRequired):
            start_run(
                grant,
                task.pk,
                trigger_type="approved_action",
                approved=approved,
                idempotency_key=key,
                input=given,
            )
    at = action_kit.started(mine).execution.started_at
    assert at is not None
    right = Approved("r-2", agent, task.revision.task_revision, at)
    for wrong in ({"a": 2}, None):
        with pytest.raises(ApprovalRequired):
            start_run(
                grant,
                task.pk,
                trigger_type="approved_action",
                approved=right,
                idempotency_key=mine.pk,
                input=wrong,
            )
    assert not Run.objects.exists()


@pytest.mark.parametrize("role", ["owner", "admin", "operator"])
def test_a_person_asks_and_somebody_else_decides(time: Time, role: str) -> None:
    task, c = marked(), kit.cast()
    who = people.member(role, "asks")
    body = {"id": "p-1", "task": "deploy", "input": {"a": 1}, "args": ["x"]}
    answer = people.api(who, "run.start")("POST", "projects/default/approvals", body)
    assert (answer.status_code, answer.json()["requested_by"]["id"]) == (201, who.subject_id)
    assert people.api(who, "run.start")("POST", "projects/default/approvals", body).status_code == 200
    own = {"decision": "approved", "reason_code": "x", "expected_version": 1, "decision_id": "d-own"}
    refused = people.api(who)("POST", "approvals/p-1/decision", own)
    assert refused.json()["code"] == (
        "permission_denied" if role == "operator" else "approval_self_decision_rejected"
    )
    kit.decide(c.admin, kit.verdict("p-1"))
    execute()
    run = Run.objects.get()
    assert (run.task_id, run.trigger_type, run.request_id, run.triggered_by_id) == (
        task.pk, "approved_action", "p-1", who.subject_id,
    )  # fmt: skip
    execute()
    with pytest.raises(ApprovalRequired):
        start(who, task)
    assert Run.objects.count() == 1


def test_for_a_task_without_the_mark_agents_ask_and_nobody_else(time: Time) -> None:
    c = kit.cast()
    kit.task("plain")
    body = {"id": "p-1", "task": "plain"}
    for who in (c.admin, c.operator):
        answer = people.api(who)("POST", "projects/default/approvals", body)
        assert (answer.status_code, answer.json()["code"]) == (403, "approval_policy_denied")
    assert (
        people.api(c.admin)("POST", "projects/default/approvals", {"id": "p", "task": "none"}).status_code
        == 404
    )
    assert people.api(people.member("viewer"))("POST", "projects/default/approvals", body).status_code == 403
    assert not ApprovalRequest.objects.exists()
    assert people.api(c.agent)("POST", "projects/default/approvals", body).status_code == 201


@pytest.mark.parametrize("kind", ["api_app", "mcp_client"])
def test_an_application_asks_too(time: Time, kind: str) -> None:
    task, c = marked(), kit.cast()
    other = people.other_subject(kind)
    people.give(other, "operator")
    path = "projects/default/tasks/deploy/runs"
    assert people.api(other, "run.start")("POST", path, {}).json()["code"] == "approval_required"
    kit.filed(other, task, "a-1")
    kit.decide(c.admin, kit.verdict("a-1"))
    execute()
    assert Run.objects.get().triggered_by_id == other.id


def test_ids_of_triggers_are_nobodys_to_choose(time: Time) -> None:
    task, c = marked(), kit.cast()
    with pytest.raises(InvalidInput):
        kit.filed(c.admin, task, "trigger:1")


def test_a_retry_by_hand_is_a_start(time: Time) -> None:
    task, owner = kit.task("deploy"), people.member("owner", "olga")
    run = start(owner, task).run
    Run.objects.filter(pk=run.pk).update(status="lost")
    mark(task)
    with pytest.raises(ApprovalRequired):
        retry_run(people.grant(owner, "run.retry"), run.pk)
    told = people.api(owner)("POST", f"runs/{run.pk}/retry")
    assert (told.status_code, told.json()["code"]) == (409, "approval_required")
    assert told.json()["ask_at"] == "/projects/default/approvals"
    assert Run.objects.count() == 1


def test_the_same_key_finds_what_was_started_before_the_mark(time: Time) -> None:
    task, owner = kit.task("deploy"), people.member("owner", "olga")
    first = start(owner, task, idempotency_key="k").run
    mark(task)
    again = start(owner, task, idempotency_key="k")
    assert again.replayed and again.run.pk == first.pk
    with pytest.raises(ApprovalRequired):
        start(owner, task, idempotency_key="other")


@pytest.mark.parametrize("when", ["asked", "approved", "handed over"])
def test_marked_or_let_loose_while_a_request_is_on_its_way(time: Time, when: str) -> None:
    """The mark is no part of what was approved: an approval carries the start it was given for, and no other."""
    c, owner = kit.cast(), people.member("owner", "olga")
    plain, loose = kit.task("plain"), marked("loose")
    kit.filed(c.agent, plain, "r-1")
    kit.filed(c.operator, loose, "r-2")

    def switch() -> None:
        mark(plain)
        clear_approval_mark(people.grant(owner, "policy.manage"), loose.pk, 1)

    if when == "asked":
        switch()
    for id in ("r-1", "r-2"):
        kit.decide(c.admin, kit.verdict(id))
    if when == "approved":
        switch()
    jobs.consume({})
    if when == "handed over":
        switch()
    execute()
    execute()
    assert sorted(Run.objects.values_list("request_id", flat=True)) == ["r-1", "r-2"]
    with pytest.raises(ApprovalRequired):
        start(owner, plain)
    start(owner, loose)


@pytest.mark.django_db(transaction=True)
def test_marked_while_somebody_starts_it(seeded: None, time: Time) -> None:
    """Either the start comes first, or it is refused: the row of the task decides."""
    owner = people.member("owner", "olga")
    for number in range(4):
        task = kit.task(f"deploy {number}")
        started, _marked = race([lambda t=task: start(owner, t), lambda t=task: mark(t)])
        refused = isinstance(started, ApprovalRequired)
        assert refused or not isinstance(started, Exception), started
        assert Run.objects.filter(task=task).count() == (not refused)
        with pytest.raises(ApprovalRequired):
            start(owner, task)


def test_the_database_itself_keeps_the_door(time: Time) -> None:
    task, owner = kit.task("deploy"), people.member("owner", "olga")
    run = start(owner, task).run
    mark(task)
    run.pk, run.idempotency_key = ids.uuid7(), None
    with pytest.raises(IntegrityError, match="not allowed"), transaction.atomic():
        run.save(force_insert=True)
    run.trigger_type = "approved_action"
    with pytest.raises(IntegrityError, match="not allowed"), transaction.atomic():
        run.save(force_insert=True)
    assert Run.objects.count() == 1


def test_what_needs_no_approval_costs_no_statement_more(time: Time) -> None:
    owner = people.member("owner", "olga")
    task = kit.task("plain")
    with CaptureQueriesContext(connection) as seen:
        start(owner, task)
    assert not [one["sql"] for one in seen if "approval_polic" in one["sql"] or "run_alone" in one["sql"]]


# Ways past it


def test_an_exempt_role_starts_alone_and_it_is_on_record(time: Time) -> None:
    task, owner, admin = marked(), people.member("owner", "olga"), people.member("admin", "adam")
    kit.policy_of_project(owner, exempt_roles=["owner"])
    with pytest.raises(ApprovalRequired):
        start(owner, task)
    with pytest.raises(ApprovalRequired):
        start(admin, task, alone=Alone())
    with pytest.raises(ApprovalRequired):
        start(owner, task, alone=Alone("a reason breaks glass, and that is another list"))
    run = start(owner, task, alone=Alone()).run
    record = AloneStart.objects.get()
    assert (record.run_id, record.kind, record.role, record.reason, record.policy_version) == (
        run.pk, "exempt", "owner", "", 1,
    )  # fmt: skip
    told = AuditEntry.objects.get(action="run.started_alone")
    assert (told.subject_id, told.actor_id, told.metadata["role"]) == (str(run.pk), owner.subject_id, "owner")
    assert door.ways(people.subject(owner), "default") == {"exempt"}
    assert door.ways(people.subject(admin), "default") == frozenset()


def test_a_star_token_of_somebody_exempt_starts_nothing(time: Time) -> None:
    marked()
    owner = people.member("owner", "olga")
    kit.policy_of_project(owner, exempt_roles=["owner"])
    path = "projects/default/tasks/deploy/runs"
    assert people.api(owner, "*")("POST", path, {}).json()["code"] == "approval_required"
    assert people.api(owner, "run.start")("POST", path, {}).status_code == 201
    assert Api(client=people.signed_in(owner))("POST", path, {}).status_code == 201
    run = Run.objects.order_by("-created_at")[0]
    Run.objects.filter(pk=run.pk).update(status="lost")
    assert people.api(owner, "*")("POST", f"runs/{run.pk}/retry").json()["code"] == "approval_required"
    assert people.api(owner, "run.retry")("POST", f"runs/{run.pk}/retry").status_code == 201


def test_agents_and_applications_are_never_exempt(time: Time) -> None:
    task, owner = marked(), people.member("owner", "olga")
    kit.policy_of_project(owner, exempt_roles=["owner"], break_glass_roles=["owner"])
    for kind in ("agent", "api_app", "mcp_client"):
        other = people.other_subject(kind)
        people.give(other, "owner")
        grant = policy.Grant(
            other, "default", "run.start", policy.decide(other, "default", "run.start").fence, "x"
        )
        for alone in (None, Alone(), Alone("now")):
            with pytest.raises(ApprovalRequired):
                start_run(grant, task.pk, trigger_type="api", alone=alone)
        for path in ("runs", "break-glass"):
            answer = people.api(other)("POST", f"projects/default/tasks/deploy/{path}", {"reason": "x"})
            assert answer.status_code in (400, 403, 409), (kind, path)
    assert not Run.objects.exists()


def test_breaking_the_glass_takes_a_reason_and_is_seen(time: Time) -> None:
    task, owner, operator = marked(), people.member("owner", "olga"), people.member("operator", "opal")
    path = "projects/default/tasks/deploy/break-glass"
    body = {"reason": "  the shop is down  ", "input": {"a": 1}}
    named = people.api(operator, "run.start")
    assert named("POST", path, body).json()["code"] == "approval_required"
    kit.policy_of_project(owner, break_glass_roles=["operator"])
    for wrong in ({}, {"reason": ""}, {"reason": " "}, {"reason": "a\nb"}, {"reason": "x" * 501}):
        assert named("POST", path, wrong).status_code == 400
    assert people.api(owner, "run.start")("POST", path, body).json()["code"] == "approval_required"
    assert people.api(operator, "*")("POST", path, body).status_code == 403
    browser = Api(client=people.signed_in(operator))
    people.age_sign_ins()
    assert browser("POST", path, body).json()["code"] == "session_not_fresh"
    assert browser("POST", "projects/default/tasks/deploy/runs", {}).json()["code"] == "approval_required"
    assert named("POST", path, body, Idempotency_Key="k").status_code == 201
    assert named("POST", path, body, Idempotency_Key="k").status_code == 200
    [record] = door.alone_starts("default", "break_glass", clock.from_ms(0))
    assert (record.reason, record.role, record.task_id) == ("the shop is down", "operator", task.pk)
    told = AuditEntry.objects.get(action="run.break_glass")
    assert told.metadata["reason"] == "the shop is down"
    kit.task("plain")
    assert named("POST", "projects/default/tasks/plain/break-glass", body).status_code == 400


def test_records_of_lone_starts_stay(time: Time) -> None:
    task, owner = marked(), people.member("owner", "olga")
    kit.policy_of_project(owner, break_glass_roles=["owner"])
    start(owner, task, alone=Alone("fire"))
    other = start(owner, kit.task("plain")).run

    def made(**changed: Any) -> None:
        values = {
            "run": other, "project_id": "default", "task": task, "kind": "exempt", "role": "owner",
            "started_by_id": "x", "policy_version": 1, **changed,
        }  # fmt: skip
        AloneStart.objects.create(**values)

    for write in (
        lambda: AloneStart.objects.update(reason="nothing"),
        lambda: AloneStart.objects.all().delete(),
        lambda: made(role="viewer"),
        lambda: made(kind="break_glass"),
        lambda: made(reason="why"),
        lambda: made(policy_version=0),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            write()


def test_a_policy_that_changes_meanwhile_counts_as_it_is_now(time: Time) -> None:
    task, owner = marked(), people.member("owner", "olga")
    kit.policy_of_project(owner, exempt_roles=["owner"])
    given = people.grant(owner, "run.start")
    kit.policy_of_project(owner, 1, exempt_roles=[])
    with pytest.raises(ApprovalRequired):
        start_run(given, task.pk, trigger_type="manual", alone=Alone())


def test_the_wish_of_somebody_who_may_not_use_secrets(time: Time) -> None:
    task = marked()
    principal = people.principal(people.member("operator", "opal"))
    filed = services.file_request(
        principal, "default", Wish("s-1", str(task.pk)), origin="tests", secrets=False
    )
    assert filed.request.state == "pending", "a task without secrets needs no right to use them"
