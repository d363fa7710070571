"""An agent asks a running panel, a person approves, and the run is there: the control cluster does the rest."""

from __future__ import annotations

import os
import secrets
import signal

import pytest

from tests.e2e.person import NAME, Api, House, manage
from tests.e2e.up_kit import eventually

SCOPES = ("*", "policy.manage", "token.manage", "approval.decide")


@pytest.fixture(scope="module")
def person(house: House) -> Api:
    """Who may decide: the first person, with a token that names the scope."""
    extra = {"DATABASE_URL": house.extra["DATABASE_URL"]} if "DATABASE_URL" in house.extra else {}
    made = manage(
        house.up.home, "create_token", "--username", NAME, "--name", "decide", "--scopes", *SCOPES, **extra
    )
    return Api(house.up.port, made.split()[-1])


@pytest.fixture(scope="module")
def agent(house: House, person: Api) -> Api:
    """An agent with the role of an operator."""
    made = person.ok("POST", "/applications", {"type": "agent", "name": "release-bot"})
    binding = {
        "subject_type": "agent", "subject_id": made["id"], "role": "operator", "expected_version": 0,
        "mutation_id": secrets.token_hex(8),
    }  # fmt: skip
    person.ok("POST", "/projects/default/role-bindings", binding)
    token = person.ok("POST", f"/applications/{made['id']}/tokens", {"name": "bot", "scopes": ["*"]})["token"]
    return Api(house.up.port, token)


def ask(agent: Api, task: dict[str, str], **start: object) -> str:
    """What an agent does: its start is refused, it asks with the same body."""
    refused = agent.call("POST", f"/projects/default/tasks/{task['slug']}/runs", start)
    assert (refused.status, refused.json["code"]) == (409, "approval_required")
    id = secrets.token_hex(8)
    made = agent.ok("POST", "/projects/default/approvals", {**start, "id": id, "task": task["slug"]})
    assert made["status"] == "pending"
    return id


def decide(person: Api, id: str, decision: str = "approved") -> None:
    verdict = {
        "decision": decision, "reason_code": "expected_change", "expected_version": 1,
        "decision_id": secrets.token_hex(8),
    }  # fmt: skip
    person.ok("POST", f"/approvals/{id}/decision", verdict)


def runs_of(person: Api, task: dict[str, str]) -> list[dict[str, str]]:
    return list(person.ok("GET", f"/projects/default/runs?task={task['slug']}")["items"])


def test_from_the_refusal_to_the_log(house: House, person: Api, agent: Api) -> None:
    task = person.make(shell='cat "$QINGLONG_INPUT"; echo "$1"')
    id = ask(agent, task, input={"tag": "v2.4"}, args=["now"])
    assert not runs_of(person, task)
    decide(person, id)
    execution = eventually(
        lambda: [
            found
            for found in [agent.call("GET", f"/approvals/{id}/execution")]
            if found.status == 200 and found.json["status"] == "succeeded"
        ],
        "the action is carried out",
        40,
    )[0].json
    assert execution["result_code"] == "approved_run_created"
    [run] = runs_of(person, task)
    ended = person.until(run["id"])
    assert (ended["status"], ended["trigger_type"]) == ("succeeded", "approved_action")
    assert person.log(run["id"]).split() == [b'{"tag":"v2.4"}now']
    assert agent.ok("GET", f"/approvals/{id}")["status"] == "consumed"


def test_what_was_changed_meanwhile_does_not_run(house: House, person: Api, agent: Api) -> None:
    task = person.make(command=["true"])
    id = ask(agent, task)
    person.ok("PATCH", f"/projects/default/tasks/{task['slug']}", {"command": ["false"]}, If_Match='"1"')
    answer = person.call(
        "POST", f"/approvals/{id}/decision",
        {"decision": "approved", "reason_code": "x", "expected_version": 1, "decision_id": secrets.token_hex(8)},
    )  # fmt: skip
    assert (answer.status, answer.json["code"]) == (409, "approval_request_void")
    assert agent.ok("GET", f"/approvals/{id}")["reason"] == "task_revision_changed"
    assert not runs_of(person, task)


def test_a_control_cluster_that_is_killed_loses_no_approval_and_doubles_none(
    house: House, person: Api, agent: Api
) -> None:
    """Whatever it was at. What it died over behind the barrier waits for evidence, and is never done twice."""
    task = person.make(command=["true"], concurrency="parallel", max_parallel=8)
    asked = [ask(agent, task, args=[str(number)]) for number in range(3)]
    for number, id in enumerate(asked):
        decide(person, id)
        if number < 2 and (pid := house.up.parts().get("ql control work")) is not None:
            os.kill(pid, signal.SIGKILL)

    def carried_out() -> bool:
        """The job of the dead is taken up when its lease of a minute has run out."""
        found = [agent.call("GET", f"/approvals/{id}/execution") for id in asked]
        return all(
            one.status == 200 and one.json["status"] in ("succeeded", "recovery_required") for one in found
        )

    eventually(carried_out, "every approval is carried out or known to be cut off", 240)
    ends = [agent.ok("GET", f"/approvals/{id}/execution")["status"] for id in asked]
    assert ends.count("succeeded") <= len(runs_of(person, task)) <= len(asked)
    assert all(agent.ok("GET", f"/approvals/{id}")["status"] == "consumed" for id in asked)
