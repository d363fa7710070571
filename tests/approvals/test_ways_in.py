"""Every way that could start or approve an action, tried by everybody who must not: none gets through (lessons D25).

Routes are found by walking them, so that a new one is tried too.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import get_commands

from apps.access.services import create_application
from apps.approvals import jobs
from apps.approvals.models import ApprovalLapse, ApprovalRequest
from apps.core import clock
from apps.identity.principals import PolicySubject
from apps.projects.models import ProjectApprovalPolicy, ProjectRoleBinding
from apps.runs.models import AloneStart, Run
from apps.runs.services import retrying, start_run
from apps.tasks.models import Task
from apps.tasks.services import update_task
from apps.triggers.drafts import TriggerDraft
from apps.triggers.services import create_trigger, fire_due
from tests import people
from tests.approvals import kit
from tests.conftest import Time
from tests.people import Api
from tests.test_routes import ROUTES, Route

WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Scene:
    """A request that waits, with everything around it that routes could name.

    `marked`: its task needs an approval whoever starts it; what ran before it did can still be retried by its name.
    """

    def __init__(self, *, marked: bool = False) -> None:
        self.cast = kit.cast()
        self.host = people.member("owner", "host")
        self.task = kit.task("deploy", command=["true"])
        started = start_run(people.grant(self.host, "run.start"), self.task.pk, trigger_type="manual")
        self.run = started.run  # type: ignore[union-attr]
        self.version = 1
        if marked:
            Run.objects.filter(pk=self.run.pk).update(status="lost")
            given = people.grant(self.host, "task.update")
            self.task = update_task(given, self.task.pk, 1, {"requires_approval": True})
            self.version = 2
        trigger = create_trigger(
            people.grant(self.host, "task.update"), people.grant(self.host, "run.start"), self.task.pk,
            TriggerDraft(kind="webhook"),
        ).trigger  # fmt: skip
        self.request = kit.filed(self.cast.agent, self.task, input={"a": 1})
        self.rows = {
            "t": self.task.slug,
            "revision": self.task.revision.task_revision,
            "runs/id": str(self.run.pk),
            "triggers/id": str(trigger.pk),
            "approvals/id": self.request.pk,
            "people/id": self.host.subject_id,
            "applications/id": self.cast.agent.id,
        }
        self.runs = Run.objects.count()
        self.bindings = ProjectRoleBinding.objects.count()

    def bodies(self, route: Route) -> list[dict[str, Any]]:
        """What such a call could be sent with, from nothing to exactly the right words."""
        verdict = {
            "decision": "approved",
            "reason_code": "tested",
            "expected_version": 1,
            "decision_id": kit.new_id(),
        }
        known: dict[str, dict[str, Any]] = {
            "decision": verdict,
            "tasks/<str:t>/runs": {"input": {"a": 1}},
            "triggers": {"kind": "interval", "every_ms": 60_000},
            "role-bindings": {
                "subject_type": "agent", "subject_id": self.cast.agent.id, "role": "owner", "expected_version": 1,
                "mutation_id": kit.new_id(),
            },
            "recovery": {
                "decision": "confirm_succeeded", "reason_code": "x", "expected_execution_version": 0,
                "expected_recovery_version": 0, "mutation_id": kit.new_id(),
            },
            "tokens": {"name": "more", "scopes": ["approval.decide"]},
            "break-glass": {"reason": "now", "input": {"a": 1}},
            "tasks/<str:t>": {"requires_approval": False},
            "approval-policy": {
                "expected_version": 0, "exempt_roles": ["owner", "admin"],
                "break_glass_roles": ["owner", "admin", "operator"],
            },
            "projects/<str:p>/approvals": {"id": kit.new_id(), "task": self.task.slug},
        }  # fmt: skip
        return [{}, *[body for suffix, body in known.items() if route.path.endswith(suffix)]]

    def try_everything(self, caller: Api, *, writes: tuple[str, ...] = WRITES) -> set[int]:
        """All writing routes with all bodies; the statuses that came back."""
        seen = set()
        for route in ROUTES:
            for method in [name for name in writes if name in route.methods()]:
                for body in self.bodies(route):
                    answer = caller(
                        method, route.url(self.rows), body, If_Match=f'"{self.version}"',
                        Idempotency_Key=kit.new_id(),
                    )  # fmt: skip
                    assert answer.status_code < 500, (route.path, method, answer.content)
                    seen.add(answer.status_code)
        return seen

    def untouched(self, *, runs: bool = True) -> None:
        jobs.consume({})
        found = ApprovalRequest.objects.get(pk=self.request.pk)
        assert (found.state, found.version, found.decision_id) == ("pending", 1, None)
        assert not kit.dispatches() and not kit.executions()
        assert ProjectRoleBinding.objects.filter(subject_id=self.cast.agent.id).count() == 1
        if runs:
            assert Run.objects.count() == self.runs


def agent(role: str | None) -> PolicySubject:
    made = create_application("agent", f"Bot {role}", actor=people.ROOT, origin="tests")
    found = PolicySubject("agent", made.pk)
    if role:
        people.give(found, role)
    return found


@pytest.mark.django_db
def test_the_requester(time: Time) -> None:
    scene = Scene()
    assert 409 in scene.try_everything(people.api(scene.cast.agent))
    scene.untouched()


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["owner", "admin", "operator", "viewer", None])
def test_another_agent(time: Time, role: str | None) -> None:
    scene = Scene()
    scene.try_everything(people.api(agent(role)))
    scene.untouched()


@pytest.mark.django_db
def test_a_viewer(time: Time) -> None:
    scene = Scene()
    scene.try_everything(people.api(people.member("viewer")))
    scene.untouched()


@pytest.mark.django_db
def test_an_operator_may_start_but_not_approve(time: Time) -> None:
    scene = Scene()
    url = f"approvals/{scene.request.pk}/decision"
    for caller in (people.api(scene.cast.operator), Api(client=people.signed_in(scene.cast.operator))):
        for body in scene.bodies(Route(url, object, "")):
            answer = caller("POST", url, body)
            assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    scene.untouched()


@pytest.mark.django_db
def test_an_owner_and_administrator_of_elsewhere(time: Time) -> None:
    scene = Scene()
    stranger = people.account("stranger", administrator=True)
    people.project(stranger)
    for route in ROUTES:
        if "<str:p>" not in route.path and not route.path.startswith(("runs/", "approvals/", "triggers/")):
            continue
        for caller in (people.api(stranger), Api(client=people.signed_in(stranger))):
            for method in set(route.methods()) & set(WRITES):
                for body in scene.bodies(route):
                    answer = caller(method, route.url(scene.rows), body, If_Match='"1"')
                    assert answer.status_code == 404, (route.path, method)
    scene.untouched()


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["owner", "admin"])
def test_a_star_token_approves_nothing(time: Time, role: str) -> None:
    scene = Scene()
    body = scene.bodies(Route("decision", object, ""))[-1]
    url = f"approvals/{scene.request.pk}/decision"
    answer = people.api(people.member(role, "star"), "*")("POST", url, body)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    scene.untouched()
    assert people.api(people.member(role, "named"), "approval.decide")("POST", url, body).status_code == 200


@pytest.mark.django_db
def test_what_expired_is_nobodys(time: Time) -> None:
    """An expired token, an expired session, a session proved too long ago, and an expired request."""
    scene = Scene()
    url, body = f"approvals/{scene.request.pk}/decision", scene.bodies(Route("decision", object, ""))[-1]
    token = people.token(scene.cast.admin, "approval.decide", expires_at=clock.from_ms(time.ms + 60_000))
    browser = Api(client=people.signed_in(scene.cast.admin))
    time.advance(60_000)
    assert Api(token)("POST", url, body).status_code == 401
    time.advance(15 * 60_000)
    answer = browser("POST", url, body)
    assert (answer.status_code, answer.json()["code"]) == (403, "session_not_fresh")
    scene.untouched()
    time.advance(kit.HOUR_MS)
    fresh = Api(client=people.signed_in(scene.cast.admin))
    answer = fresh("POST", url, body)
    assert (answer.status_code, answer.json()["code"]) == (409, "approval_request_expired")
    scene.untouched()


@pytest.mark.django_db
def test_what_is_replayed_counts_once(time: Time) -> None:
    scene = Scene()
    admin, second = people.api(scene.cast.admin), people.api(people.member("owner", "olga"))
    url, body = f"approvals/{scene.request.pk}/decision", scene.bodies(Route("decision", object, ""))[-1]
    body["decision"] = "rejected"
    assert admin("POST", url, body).json()["status"] == "rejected"
    assert admin("POST", url, body).json()["status"] == "rejected"
    later = kit.filed(scene.cast.agent, scene.task, "r-2")
    for caller in (admin, second):
        for other in (
            {**body, "decision": "approved"},
            {**body, "decision_id": "new", "decision": "approved"},
        ):
            assert caller("POST", url, other).status_code == 409
        answer = caller("POST", f"approvals/{later.pk}/decision", {**body, "decision": "approved"})
        assert (answer.status_code, answer.json()["code"]) == (409, "approval_mutation_conflict")
    jobs.consume({})
    assert not kit.dispatches() and kit.fresh("r-2").state == "pending"


@pytest.mark.django_db
def test_an_approval_for_one_thing_starts_nothing_else(time: Time) -> None:
    """An approved request is no right of the agent: all it had to ask for it still has to ask for."""
    scene = Scene()
    kit.decide(scene.cast.admin, kit.verdict(scene.request.pk))
    jobs.consume({})
    assert len(kit.dispatches()) == 1
    before = Run.objects.count()
    scene.try_everything(people.api(scene.cast.agent))
    jobs.consume({})
    assert len(kit.dispatches()) == 1 and Run.objects.count() == before


def test_no_command_approves() -> None:
    assert not [name for name in get_commands() if "approv" in name or "decide" in name]


# A task that needs an approval whoever starts it: the same, and those too who may start any other.


def _closed(scene: Scene) -> None:
    """Nothing was started, decided or let loose."""
    scene.untouched(runs=False)
    assert list(Run.objects.filter(task=scene.task).values_list("pk", flat=True)) == [scene.run.pk]
    assert Task.objects.get(pk=scene.task.pk).requires_approval
    assert not ProjectApprovalPolicy.objects.exists() and not AloneStart.objects.exists()


def _later(scene: Scene, time: Time) -> None:
    """What anybody may have left behind that starts by itself."""
    for _ in range(3):
        time.advance(61_000)
        fire_due(lambda _due: "late")
        retrying.sweep()
        jobs.ask({})
        jobs.consume({})
        jobs.execute({})


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["requester", "owner", "admin", "operator", "viewer", None])
def test_agents_and_a_marked_task(time: Time, role: str | None) -> None:
    scene = Scene(marked=True)
    scene.try_everything(people.api(scene.cast.agent if role == "requester" else agent(role)))
    # Who asked may take it back, and that is all that they can.
    if role == "requester":
        assert ApprovalLapse.objects.get(pk=scene.request.pk).code == "withdrawn"
    _closed(scene)
    _later(scene, time)
    _closed(scene)


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_people_who_do_not_decide_and_a_marked_task(time: Time, role: str) -> None:
    scene = Scene(marked=True)
    who = people.member(role, "somebody")
    for caller in (people.api(who), Api(client=people.signed_in(who))):
        seen = scene.try_everything(caller, writes=("POST", "PUT", "PATCH"))
        assert role == "viewer" or 409 in seen
    _closed(scene)
    _later(scene, time)
    _closed(scene)
    assert (ApprovalRequest.objects.count() > 1) == (role == "operator"), "whoever may start may ask"


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["admin", "owner"])
def test_a_star_token_and_a_marked_task(time: Time, role: str) -> None:
    scene = Scene(marked=True)
    seen = scene.try_everything(people.api(people.member(role, "star"), "*"), writes=("POST", "PATCH"))
    assert 403 in seen and 409 in seen
    _closed(scene)
    _later(scene, time)
    _closed(scene)


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["admin", "owner"])
def test_who_decides_does_not_start_a_marked_task_either(time: Time, role: str) -> None:
    """Nor approve what they asked for: another person is needed, whatever their role."""
    scene = Scene(marked=True)
    who = people.member(role, "mighty")
    named = people.api(who, "run.start", "run.retry")
    for caller in (named, Api(client=people.signed_in(who))):
        for path, body in (
            (f"projects/default/tasks/{scene.task.slug}/runs", {"input": {"a": 1}}),
            (f"projects/default/tasks/{scene.task.slug}/break-glass", {"reason": "now"}),
            (f"runs/{scene.run.pk}/retry", None),
        ):
            answer = caller("POST", path, body)
            assert (answer.status_code, answer.json()["code"]) == (409, "approval_required"), path
            assert answer.json()["ask_at"] == "/projects/default/approvals"
    own = kit.filed(who, scene.task, "own")
    verdict = scene.bodies(Route(f"approvals/{own.pk}/decision", object, ""))[-1]
    answer = people.api(who)("POST", f"approvals/{own.pk}/decision", verdict)
    assert (answer.status_code, answer.json()["code"]) == (403, "approval_self_decision_rejected")
    _later(scene, time)
    _closed(scene)


@pytest.mark.django_db
def test_a_stranger_and_a_marked_task(time: Time) -> None:
    scene = Scene(marked=True)
    stranger = people.account("stranger", administrator=True)
    people.project(stranger)
    for caller in (people.api(stranger), Api(client=people.signed_in(stranger))):
        for route in ROUTES:
            if "<str:p>" not in route.path and not route.path.startswith(
                ("runs/", "approvals/", "triggers/")
            ):
                continue
            for method in set(route.methods()) & set(WRITES):
                for body in scene.bodies(route):
                    assert caller(method, route.url(scene.rows), body, If_Match='"2"').status_code == 404
    _closed(scene)


@pytest.mark.django_db
def test_an_expired_and_a_replayed_approval_start_a_marked_task_once_at_most(time: Time) -> None:
    scene = Scene(marked=True)
    kit.filed(scene.cast.operator, scene.task, "late", expires_in_ms=60_000)
    kit.decide(scene.cast.admin, kit.verdict("late"))
    time.advance(60_000)
    _later(scene, time)
    _closed(scene)
    kit.filed(scene.cast.operator, scene.task, "once")
    for _ in range(3):
        kit.decide(scene.cast.admin, kit.verdict("once"))
        _later(scene, time)
    assert Run.objects.filter(task=scene.task).count() == 2
    kit.filed(scene.cast.operator, scene.task, "once")
    _later(scene, time)
    assert Run.objects.filter(task=scene.task).count() == 2 and len(kit.dispatches()) == 1
