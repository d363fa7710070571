"""Approvals over the API: ask, look, decide, page."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.approvals import jobs, services
from apps.approvals.health import gauges
from apps.projects import policy
from apps.vault import services as vault
from tests import people
from tests.approvals import kit
from tests.conftest import Time
from tests.people import Api

pytestmark = pytest.mark.django_db
LIST = "projects/default/approvals"


def body(task: Any, id: str = "r-1", **more: Any) -> dict[str, Any]:
    return {"id": id, "action_type": "run.create", "task": task.slug, **more}


def test_from_refusal_to_approval(time: Time) -> None:
    """What an agent meets: its start is refused, it asks with the same body, a person decides."""
    c = kit.cast()
    task = kit.task()
    agent, admin = people.api(c.agent), people.api(c.admin)
    start = {"input": {"tag": "v2.4"}, "args": ["x"], "priority": 3}
    refused = agent("POST", f"projects/default/tasks/{task.slug}/runs", start)
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_required")
    assert (refused.json()["permission"], refused.json()["action_type"]) == ("run.start", "run.create")
    assert refused.json()["ask_at"] == f"/{LIST}"
    asked = {**start, "id": "r-1", "task": task.slug, "action_type": refused.json()["action_type"]}
    made = agent("POST", LIST, asked)
    assert made.status_code == 201 and made["ETag"] == '"1"'
    found = made.json()
    assert (found["status"], found["input"], found["args"]) == ("pending", {"tag": "v2.4"}, ["x"])
    assert found["preview"]["task"]["slug"] == task.slug and found["preview"]["priority"] == 3
    again = agent("POST", LIST, asked)
    assert again.status_code == 200 and again.json() == found
    verdict = {"decision": "approved", "reason_code": "tested", "expected_version": 1, "decision_id": "d-1"}
    time.advance(1_000)
    done = admin("POST", "approvals/r-1/decision", verdict)
    assert done.status_code == 200 and done["ETag"] == '"2"'
    assert done.json()["decision"]["decided_by"] == {"type": "user", "id": c.admin.subject_id}
    time.advance(1_000)
    assert admin("POST", "approvals/r-1/decision", verdict).json() == done.json()
    assert admin("GET", "approvals/r-1/execution").status_code == 404
    jobs.consume({})
    seen = agent("GET", "approvals/r-1").json()
    assert (seen["status"], seen["version"]) == ("consumed", 3) and seen["consumption"]["dispatch_id"]
    execution = agent("GET", "approvals/r-1/execution").json()
    assert (execution["status"], execution["attempt_count"]) == ("pending", 0)
    assert "lease_token" not in str(execution)


def test_who_may_act_does_not_ask(time: Time) -> None:
    task = kit.task()
    answer = people.api(people.member("operator"))("POST", LIST, body(task))
    assert (answer.status_code, answer.json()["code"]) == (403, "approval_policy_denied")


def test_a_token_without_the_scope_does_not_ask(time: Time) -> None:
    c = kit.cast()
    answer = people.api(c.agent, "project.read", "task.read")("POST", LIST, body(kit.task()))
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")


def test_a_token_that_is_not_for_secrets_asks_for_no_task_that_names_some(time: Time) -> None:
    c = kit.cast()
    manage = policy.Grant.system("default", "secret.manage", "tests")
    vault.put(manage, "token", "s3cret", mutation_id="m", expected_version=0)
    secretive, plain = kit.task(secrets={"TOKEN": "token"}), kit.task("plain")
    caller = people.api(c.agent, "project.read", "run.start")
    answer = caller("POST", LIST, body(secretive))
    assert (answer.status_code, answer.json()["code"]) == (403, "approval_policy_denied")
    assert caller("POST", LIST, body(plain)).status_code == 201
    allowed = people.api(c.agent, "project.read", "run.start", "secret.use")
    made = allowed("POST", LIST, body(secretive, "r-2"))
    assert made.json()["preview"]["secrets"] == [{"variable": "TOKEN", "name": "token", "version": 1}]
    assert "s3cret" not in made.content.decode()


def test_an_agent_is_told_that_people_decide(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task())
    answer = people.api(c.agent)("POST", "approvals/r-1/decision", {})
    assert (answer.status_code, answer.json()["code"]) == (403, "approval_human_decision_required")
    stranger = people.other_subject("agent")
    assert people.api(stranger)("POST", "approvals/r-1/decision", {}).status_code == 404


def test_input_is_for_who_asked_and_who_may_decide(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task(), input={"word": "hidden"})
    for who, seen in (
        (c.agent, True),
        (c.admin, True),
        (c.operator, False),
        (people.member("viewer"), False),
    ):
        answer = people.api(who)("GET", "approvals/r-1")
        assert answer.status_code == 200 and ("hidden" in answer.content.decode()) is seen
        assert answer.json()["preview"]["has_input"] is True
    listed = people.api(c.admin)("GET", LIST)
    assert "hidden" not in listed.content.decode()


def test_what_is_void_says_why(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    kit.filed(c.agent, task)
    people.give(c.agent, "viewer", version=2)
    seen = people.api(c.admin)("GET", "approvals/r-1").json()
    assert (seen["status"], seen["reason"], seen["state"]) == ("void", "requester_role_changed", "pending")
    verdict = {"decision": "approved", "reason_code": "x", "expected_version": 1, "decision_id": "d"}
    refused = people.api(c.admin)("POST", "approvals/r-1/decision", verdict)
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_request_void")
    assert refused.json()["reason"] == "requester_role_changed"


def test_pages(time: Time) -> None:
    c = kit.cast()
    other = people.other_subject("agent")
    people.give(other, "operator")
    for number in range(6):
        kit.requested(c.agent if number % 2 else other, f"r-{number}", life_ms=kit.HOUR_MS - number)
        time.advance(1)
    kit.decide(c.admin, kit.verdict("r-0", decision="rejected"))
    caller = people.api(c.admin)

    def walk(query: str) -> list[str]:
        found, cursor = [], ""
        while True:
            page = caller("GET", f"{LIST}?limit=2&{query}{cursor}").json()
            found += [item["id"] for item in page["items"]]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    assert walk("") == [f"r-{number}" for number in range(5, -1, -1)]
    # r-1 was asked for 1 ms later than r-0 and lives 1 ms less: they expire together, then by id.
    assert walk("state=pending") == [f"r-{number}" for number in range(1, 6)]
    assert walk("state=rejected") == ["r-0"]
    mine = people.api(c.agent)("GET", f"{LIST}?requested_by=me").json()
    assert [item["id"] for item in mine["items"]] == ["r-5", "r-3", "r-1"]
    time.advance(kit.HOUR_MS)
    assert walk("state=pending&live=true") == [] and len(walk("state=pending")) == 5
    assert {item["status"] for item in caller("GET", f"{LIST}?state=pending").json()["items"]} == {"expired"}
    for wrong in (
        "state=open",
        "live=true",
        "live=1&state=pending",
        "requested_by=me2",
        "limit=201",
        "nonsense=1",
    ):
        assert caller("GET", f"{LIST}?{wrong}").status_code == 400
    cursor = caller("GET", f"{LIST}?limit=2").json()["next_cursor"]
    assert caller("GET", f"{LIST}?limit=2&state=pending&cursor={cursor}").status_code == 409


def test_a_page_costs_the_same_whatever_is_on_it(time: Time) -> None:
    c = kit.cast()
    caller = people.api(c.admin)
    counts = []
    caller("GET", LIST)
    for size in (1, 20):
        for number in range(size):
            kit.requested(c.agent, f"r-{size}-{number}")
        with CaptureQueriesContext(connection) as asked:
            assert caller("GET", LIST).status_code == 200
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_a_fresh_session_decides(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task())
    verdict = {"decision": "rejected", "reason_code": "no", "expected_version": 1, "decision_id": "d"}
    browser = Api(client=people.signed_in(c.admin))
    time.advance(15 * 60_000)
    assert browser("POST", "approvals/r-1/decision", verdict).json()["code"] == "session_not_fresh"
    browser = Api(client=people.signed_in(c.admin))
    assert browser("POST", "approvals/r-1/decision", verdict).json()["status"] == "rejected"


def test_too_many_decisions_wait(time: Time) -> None:
    c = kit.cast()
    caller = people.api(c.admin)
    for _number in range(60):
        services.deciding.decisions.count(c.admin.subject_id)
    kit.filed(c.agent, kit.task())
    verdict = {"decision": "rejected", "reason_code": "no", "expected_version": 1, "decision_id": "d"}
    answer = caller("POST", "approvals/r-1/decision", verdict)
    assert answer.status_code == 429 and int(answer["Retry-After"]) >= 1


def test_figures(time: Time, settings: Any) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    time.advance(5_000)
    kit.approved(c, "r-2")
    time.advance(1_000)
    found = {gauge.name: dict(gauge.values) for gauge in gauges()}
    assert found["approvals_open"] == {"pending": 1.0, "approved": 1.0}
    assert found["approvals_oldest_seconds"] == {"pending": 6.0, "approved": 1.0}
    time.advance(kit.HOUR_MS)
    assert next(gauges()).values == {"pending": 0.0, "approved": 0.0}
