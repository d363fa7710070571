"""How far an action has come, and closing one by hand, over the API and for whoever watches."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.approvals import health, jobs, queries
from apps.approvals.cycle import PROFILES
from apps.approvals.models import ApprovedActionDispatch, ApprovedActionRecoveryAuthorization
from apps.approvals.services import execution, manual
from apps.approvals.services.run_creation import create_approved_run
from apps.core import clock, metrics
from apps.core.health import Problem
from apps.core.models import ControlJob
from apps.identity.principals import Assurance
from tests import people
from tests.approvals import action_kit, kit
from tests.conftest import Time
from tests.people import Api

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def unhurried() -> None:
    manual.recoveries.clear()


def body(**changed: Any) -> dict[str, Any]:
    return {
        "decision": "confirm_failed", "reason_code": "looked_myself", "mutation_id": "m-1",
        "expected_execution_version": 2, "expected_recovery_version": 0, **changed,
    }  # fmt: skip


def stuck(c: kit.Cast, time: Time, id: str = "r-1") -> ApprovedActionDispatch:
    dispatch = action_kit.handed_over(c, id=id)
    action_kit.started(dispatch)
    time.advance(action_kit.LEASE_MS)
    return dispatch


def strong(user: Any, assurance: Assurance = Assurance.MULTI_FACTOR) -> Api:
    return Api(client=people.signed_in(user, assurance=assurance))


def test_from_waiting_to_receipt(time: Time) -> None:
    c = kit.cast()
    agent = people.api(c.agent)
    kit.filed(c.agent, kit.task())
    assert agent("GET", "approvals/r-1/execution").status_code == 404
    dispatch = action_kit.consumed(kit.decide(c.admin))
    found = agent("GET", "approvals/r-1/execution").json()
    assert (found["status"], found["receipt"], found["recovery"]) == ("pending", None, None)
    action_kit.dispatch_all()
    answer = agent("GET", "approvals/r-1/execution")
    found = answer.json()
    [run] = action_kit.runs()
    assert (found["status"], found["result_code"]) == ("succeeded", "approved_run_created")
    assert (found["receipt"]["resource_type"], found["receipt"]["resource_id"]) == ("run", str(run.pk))
    assert (found["recovery"]["status"], found["recovery"]["resolution"]) == ("resolved", None)
    assert answer["ETag"] == f'"{found["version"]}"'
    assert agent("GET", f"runs/{run.pk}").json()["triggered_by"] == {"type": "agent", "id": c.agent.id}
    assert action_kit.fresh(dispatch).lease_token is None


def test_closed_by_hand(time: Time) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    found = people.api(c.admin)("GET", "approvals/r-1/execution").json()
    assert (found["status"], found["version"], found["recovery"]["status"]) == (
        "recovery_required",
        2,
        "armed",
    )
    for secret in (action_kit.TOKEN, action_kit.OWNER):
        assert secret not in str(found)
    person = strong(c.admin)
    answer = person("POST", "approvals/r-1/recovery", body())
    assert answer.status_code == 200, answer.content
    closed = answer.json()
    assert closed["status"] == "failed"
    assert closed["recovery"]["resolution"] == {
        "source": "human", "decision": "confirm_failed", "reason_code": "looked_myself", "evidence_digest": None,
        "resolved_by": {"type": "user", "id": c.admin.subject_id}, "resolved_at": clock.rfc3339(clock.now()),
    }  # fmt: skip
    fact = ApprovedActionRecoveryAuthorization.objects.get(pk=dispatch.pk)
    assert fact.authentication_id not in str(closed)
    time.advance(1_000)
    assert person("POST", "approvals/r-1/recovery", body()).json() == closed
    other = person("POST", "approvals/r-1/recovery", body(decision="confirm_succeeded"))
    assert (other.status_code, other.json()["code"]) == (409, "approved_action_dispatch_state_conflict")


@pytest.mark.parametrize("assurance", [Assurance.SINGLE_FACTOR, None])
def test_a_weak_sign_in_or_a_token_closes_nothing(time: Time, assurance: Assurance | None) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    caller = people.api(c.admin) if assurance is None else strong(c.admin, assurance)
    answer = caller("POST", "approvals/r-1/recovery", body())
    code = "approved_action_recovery_strong_authentication_required"
    assert (answer.status_code, answer.json()["code"]) == (401, code)
    assert action_kit.fresh(dispatch).status == "executing"


def test_an_old_sign_in_closes_nothing(time: Time) -> None:
    c = kit.cast()
    stuck(c, time)
    person = strong(c.admin)
    time.advance(300_001)
    answer = person("POST", "approvals/r-1/recovery", body())
    assert answer.json()["code"] == "approved_action_recovery_strong_authentication_required"
    time.advance(-1)
    assert person("POST", "approvals/r-1/recovery", body()).status_code == 200


def test_who_may_not(time: Time) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    nothing = strong(c.admin)("POST", "approvals/none/recovery", body())
    outsider = strong(people.account("outsider"))("POST", "approvals/r-1/recovery", body())
    assert (nothing.status_code, outsider.status_code) == (404, 404)
    assert nothing.content == outsider.content
    for user in (c.operator, people.member("viewer")):
        answer = strong(user)("POST", "approvals/r-1/recovery", body())
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    answer = people.api(c.agent)("POST", "approvals/r-1/recovery", body())
    assert (answer.status_code, answer.json()["code"]) == (403, "approved_action_recovery_human_required")
    everything = people.api(c.admin, "*")("POST", "approvals/r-1/recovery", body())
    assert everything.status_code == 403
    assert action_kit.fresh(dispatch).status == "executing"


def test_before_there_is_anything_to_close(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task())
    person = strong(c.admin)
    assert person("POST", "approvals/r-1/recovery", body()).status_code == 404
    action_kit.consumed(kit.decide(c.admin))
    assert person("POST", "approvals/r-1/recovery", body()).status_code == 404
    for wrong in (
        {"decision": "retry"},
        {"expected_execution_version": -1},
        {"extra": 1},
        {"mutation_id": "a b"},
    ):
        assert person("POST", "approvals/r-1/recovery", body(**wrong)).status_code == 400


def test_the_queue_of_people_is_read_with_one_query(time: Time) -> None:
    c = kit.cast()
    with action_kit.action_type(action_kit.Effect()):
        made = []
        for number in range(5):
            made.append(action_kit.handed_over_elsewhere(c, f"r-{number}", action_type=action_kit.OTHER))
            action_kit.started(made[-1])
            time.advance(1)
        time.advance(action_kit.LEASE_MS)
        assert action_kit.recover_all().manual_required == 5
    with CaptureQueriesContext(connection) as asked:
        first = queries.for_people("default", limit=3)
        seen = [row.dispatch.dispatch.approval_request_id for row in first.items]
    assert seen == ["r-0", "r-1", "r-2"] and len(asked) == 1
    second = queries.for_people("default", limit=3, cursor=first.next_cursor)
    assert [row.pk for row in second.items] == [one.pk for one in made[3:]] and second.next_cursor is None
    assert [one.status for one in queries.executions("default", "executing", limit=2).items] == [
        "recovery_required"
    ] * 2
    assert queries.for_people("elsewhere").items == []


def problems() -> dict[str, Problem]:
    from apps.core import health as checks

    return {one.code: one for one in checks.problems() if one.code.startswith("approvals")}


def test_who_watches_hears_of_it(time: Time) -> None:
    c = kit.cast()
    assert problems() == {}
    dispatch = stuck(c, time)
    action_kit.recover_all()
    assert problems() == {}
    time.advance(health.EVIDENCE_S * 1_000 - action_kit.LEASE_MS)
    found = problems()
    assert set(found) == {"approvals_evidence"} and not found["approvals_evidence"].failing
    assert "10 min" in str(found["approvals_evidence"].sentence)
    action_kit.close_by_hand(c.admin, dispatch)
    assert problems() == {}
    with action_kit.action_type(action_kit.Effect()):
        other = action_kit.handed_over_elsewhere(c, "r-2", action_type=action_kit.OTHER)
        action_kit.started(other)
        time.advance(action_kit.LEASE_MS)
        action_kit.recover_all()
    assert set(problems()) == {"approvals_manual"}
    action_kit.close_by_hand(c.admin, other, mutation_id="m-2")
    action_kit.handed_over(c, id="r-3")
    time.advance(180_000)
    assert set(problems()) == {"approvals_not_taken_up"}


def test_figures(time: Time) -> None:
    c = kit.cast()
    stuck(c, time)
    action_kit.handed_over(c, id="r-2")
    ControlJob.objects.create(name=jobs.EXECUTE, due_at=clock.now(), cursor={})
    ControlJob.objects.filter(name=jobs.EXECUTE).update(cursor=jobs.execute({}))
    time.advance(1_000)
    with CaptureQueriesContext(connection) as asked:
        found = {gauge.name: gauge.values for gauge in health.gauges()}
    assert len(asked) == 7
    assert found["approved_actions_open"] == {
        "pending": 0.0, "leased": 0.0, "retry_wait": 0.0, "executing": 1.0,
    }  # fmt: skip
    assert found["approved_actions_manual"] == {"": 0.0}
    assert found["approved_actions_evidence_missing_seconds"] == {"": 31.0}
    assert set(found["approved_actions_phase_seconds"]) == {"recovery", "dispatch"}
    assert found["approved_actions_phase_stalled"] == {"recovery": 0.0, "dispatch": 0.0}
    assert "approvals" in metrics._sources


def test_a_job_carries_it_out_once_it_is_rung(time: Time) -> None:
    c = kit.cast()
    ControlJob.objects.create(name=jobs.EXECUTE, due_at=action_kit.later(30_000), cursor={})
    dispatch = action_kit.handed_over(c)
    assert ControlJob.objects.get(name=jobs.EXECUTE).due_at == clock.now()
    assert jobs.execute({}) is not None
    assert action_kit.fresh(dispatch).status == "succeeded"
    # What is due later is seen by the scheduler.
    ControlJob.objects.filter(name=jobs.EXECUTE).update(due_at=action_kit.later(30_000))
    jobs.look(clock.now())
    assert ControlJob.objects.get(name=jobs.EXECUTE).due_at > clock.now(), "nothing is due"
    action_kit.handed_over(c, id="r-2")
    ControlJob.objects.filter(name=jobs.EXECUTE).update(due_at=action_kit.later(30_000))
    jobs.look(clock.now())
    assert ControlJob.objects.get(name=jobs.EXECUTE).due_at == clock.now()


def test_a_run_that_recovery_needs_stays_whole(time: Time) -> None:
    from apps.runs.services import holds

    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    run = create_approved_run(snapshot, action_kit.plan(dispatch)).run
    assert holds.held([run.pk]) == {run.pk}
    execution.complete(action_kit.held(snapshot), "e-1", "succeeded", "approved_run_created", clock.now())
    assert holds.held([run.pk]) == set()


def test_profiles() -> None:
    assert [PROFILES[name].interval_s for name in ("edge", "standalone", "cluster")] == [30, 2, 2]
