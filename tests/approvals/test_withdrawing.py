"""Taking back what one asked for: only by who asked, only while nobody decided (docs/approvals.md)."""

from __future__ import annotations

import pytest

from apps.approvals import jobs, services
from apps.audit.models import AuditEntry
from apps.tasks.models import Task
from tests import people
from tests.approvals import action_kit, kit
from tests.conftest import Time

pytestmark = pytest.mark.django_db


def test_who_asked_takes_it_back(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task(), "r-1")
    for other in (c.admin, c.operator):
        answer = people.api(other)("POST", "approvals/r-1/withdraw")
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert people.api(people.member("viewer"))("POST", "approvals/r-1/withdraw").status_code == 403
    assert people.api(c.agent, "run.read")("POST", "approvals/r-1/withdraw").status_code == 403
    answer = people.api(c.agent, "run.start")("POST", "approvals/r-1/withdraw")
    body = answer.json()
    assert (answer.status_code, body["state"], body["status"], body["reason"]) == (
        200, "pending", "withdrawn", "withdrawn",
    )  # fmt: skip
    assert people.api(c.agent)("POST", "approvals/r-1/withdraw").status_code == 200
    assert kit.outcome(lambda: kit.decide(c.admin)) == "approval_request_void"
    assert kit.fresh().state == "pending"
    told = AuditEntry.objects.get(action="approval.withdrawn")
    assert (told.actor_id, told.subject_id) == (c.agent.id, "r-1")
    assert kit.filed(c.agent, Task.objects.get(), "r-2").state == "pending", "asked for anew, with another id"


def test_only_what_nobody_decided_is_taken_back(time: Time) -> None:
    c = kit.cast()
    task = kit.task()
    asker = people.principal(c.agent)

    def withdraw(id: str) -> str:
        return kit.outcome(lambda: services.withdraw(asker, id, origin="tests"))

    kit.filed(c.agent, task, "done")
    kit.decide(c.admin, kit.verdict("done"))
    assert withdraw("done") == "approval_request_state_conflict"
    jobs.consume({})
    assert withdraw("done") == "approval_request_state_conflict"
    kit.filed(c.agent, task, "late", expires_in_ms=1_000)
    time.advance(1_000)
    assert withdraw("late") == "approval_request_expired"
    assert withdraw("none") == "approval_request_not_found"
    kit.requested(c.agent, "other", action=kit.action("x"))
    with action_kit.action_type():
        kit.requested(c.agent, "kept", action=kit.action("kept", action_type=action_kit.OTHER))
        assert withdraw("kept") == "approval_not_withdrawable"
    assert withdraw("other") == "ok"
