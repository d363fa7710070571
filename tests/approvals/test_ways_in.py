"""Every way that could start or approve an action, tried by everybody who must not: none gets through (lessons D25).

Routes are found by walking them, so that a new one is tried too.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import get_commands

from apps.access.services import create_application
from apps.approvals import jobs
from apps.approvals.models import ApprovalRequest
from apps.core import clock
from apps.identity.principals import PolicySubject
from apps.projects.models import ProjectRoleBinding
from apps.runs.models import Run
from apps.runs.services import start_run
from apps.triggers.drafts import TriggerDraft
from apps.triggers.services import create_trigger
from tests import people
from tests.approvals import kit
from tests.conftest import Time
from tests.people import Api
from tests.test_routes import ROUTES, Route

WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Scene:
    """A request that waits, with everything around it that routes could name."""

    def __init__(self) -> None:
        self.cast = kit.cast()
        self.host = people.member("owner", "host")
        self.task = kit.task("deploy", command=["true"])
        started = start_run(people.grant(self.host, "run.start"), self.task.pk, trigger_type="manual")
        self.run = started.run  # type: ignore[union-attr]
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
        }  # fmt: skip
        return [{}, *[body for suffix, body in known.items() if route.path.endswith(suffix)]]

    def try_everything(self, caller: Api) -> set[int]:
        """All writing routes with all bodies; the statuses that came back."""
        seen = set()
        for route in ROUTES:
            for method in set(route.methods()) & set(WRITES):
                for body in self.bodies(route):
                    answer = caller(
                        method, route.url(self.rows), body, If_Match='"1"', Idempotency_Key=kit.new_id()
                    )
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
