"""Requests, people and agents, for tests of approvals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from apps.access.models import User
from apps.approvals import services
from apps.approvals.models import ApprovalRequest, ApprovedActionDispatch, ApprovedActionExecution
from apps.approvals.records import Action
from apps.approvals.services import Consumption, NewRequest, Verdict, Wish
from apps.approvals.services.deciding import decisions
from apps.core import canonical, ids
from apps.core.errors import DomainError
from apps.identity.principals import PolicySubject
from apps.projects import approval_policy, policy
from apps.projects.services import change_approval_policy
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft, create_task
from apps.vault import keyring
from tests import people

HOUR_MS = 3_600_000
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def ready(tmp_path: Path, settings: Any) -> Iterator[None]:
    """A keyring of the test's own; nobody decided anything in the last minute. Import it to have it."""
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()
    decisions.clear()
    yield
    decisions.clear()


@dataclass
class Cast:
    """The people of the scenarios: an agent that is operator, an admin and an operator."""

    agent: PolicySubject
    admin: User
    operator: User


def cast() -> Cast:
    agent = people.other_subject("agent")
    people.give(agent, "operator")
    return Cast(agent, people.member("admin", "ursula"), people.member("operator", "victor"))


def action(name: str = "one", **changed: Any) -> Action:
    values = {
        "permission": "run.start",
        "action_type": "run.create",
        "action_ref": f"elsewhere:{name}",
        "action_digest": canonical.sha256(f"action {name}"),
        "preview_digest": canonical.sha256(f"preview {name}"),
    }
    return Action(**{**values, **changed})


def wish(agent: PolicySubject, id: str = "r-1", **changed: Any) -> NewRequest:
    """A request by digests, whose plan is not ours."""
    values: dict[str, Any] = {
        "id": id, "project_id": "default", "action": action(), "risk": "medium", "requested_by": agent,
        "life_ms": HOUR_MS,
    }  # fmt: skip
    return NewRequest(**{**values, **changed})


def requested(agent: PolicySubject, id: str = "r-1", **changed: Any) -> ApprovalRequest:
    return services.create(wish(agent, id, **changed)).request


def verdict(id: str = "r-1", **changed: Any) -> Verdict:
    values: dict[str, Any] = {
        "request_id": id, "expected_version": 1, "decision_id": f"d-{id}", "decision": "approved",
        "reason_code": "expected_change",
    }  # fmt: skip
    return Verdict(**{**values, **changed})


def decide(who: User | PolicySubject, given: Verdict | None = None) -> ApprovalRequest:
    found = services.decide(people.principal(who), given or verdict(), origin="tests")
    return found.request


def approved(c: Cast, id: str = "r-1", **changed: Any) -> ApprovalRequest:
    requested(c.agent, id, **changed)
    return decide(c.admin, verdict(id))


def consumption(request: ApprovalRequest, **changed: Any) -> Consumption:
    return replace(Consumption.of(request), **changed)


def fresh(id: str = "r-1") -> ApprovalRequest:
    return ApprovalRequest.objects.get(pk=id)


def task(name: str = "deploy", **options: Any) -> Task:
    options.setdefault("command", ["true"])
    grant = policy.Grant.system("default", "task.create", "tests")
    return create_task(grant, TaskDraft(name=name, **options))


def policy_of_project(who: User, version: int = 0, **changes: Any) -> approval_policy.ApprovalPolicy:
    """Changes the project's policy as a person who may."""
    return change_approval_policy(people.grant(who, "policy.manage"), version, changes).policy


def filed(agent: PolicySubject | User, of: Task, id: str = "r-1", **changed: Any) -> ApprovalRequest:
    """A request to start a task, with plan and preview of the server's."""
    wanted = Wish(id=id, task=str(of.pk), **changed)
    return services.file_request(people.principal(agent), "default", wanted, origin="tests").request


def dispatches() -> list[ApprovedActionDispatch]:
    return list(ApprovedActionDispatch.objects.order_by("pk"))


def executions() -> list[ApprovedActionExecution]:
    return list(ApprovedActionExecution.objects.order_by("pk"))


def outcome(function: Callable[[], Any]) -> str:
    """`ok`, or the code of the refusal."""
    try:
        function()
    except DomainError as error:
        return error.code
    return "ok"


def between(monkeypatch: Any, happens: Callable[[], Any]) -> None:
    """Lets something happen after the next look at the policy, before the write that relies on it."""
    look = policy.decide
    left = [happens]

    def decide(*args: Any, **options: Any) -> Any:
        found = look(*args, **options)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(policy, "decide", decide)


def new_id() -> str:
    return str(ids.uuid7())
