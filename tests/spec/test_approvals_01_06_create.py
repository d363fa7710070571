"""approvals.md §13, 1–6: asking."""

from __future__ import annotations

from typing import Any

import pytest

from apps.approvals import services
from apps.approvals.errors import (
    ApprovalPolicyDenied,
    InvalidApprovalValue,
    MutationConflict,
    PolicyFenceConflict,
)
from apps.approvals.models import ApprovalRequest
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.errors import InvalidInput
from tests import people
from tests.approvals import kit
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time

pytestmark = pytest.mark.django_db


def count() -> int:
    return ApprovalRequest.objects.count()


def test_approvals_01_create_and_the_same_again(time: Time) -> None:
    c = kit.cast()
    first = services.create(kit.wish(c.agent))
    assert (first.request.state, first.request.version, first.existing) == ("pending", 1, False)
    assert clock.to_ms(first.request.requested_at) == time.ms
    assert clock.to_ms(first.request.expires_at) == time.ms + kit.HOUR_MS
    time.advance(60_000)
    again = services.create(kit.wish(c.agent))
    assert again.existing and again.request.requested_at == first.request.requested_at
    assert count() == 1
    assert AuditEntry.objects.filter(action="approval.requested").count() == 1


def test_approvals_01_the_same_again_shows_what_became_of_it(time: Time) -> None:
    c = kit.cast()
    kit.approved(c)
    again = services.create(kit.wish(c.agent))
    assert again.existing and again.request.state == "approved"


@pytest.mark.parametrize(
    "changed",
    [
        {"risk": "high"},
        {"action": kit.action(action_digest="a" * 64)},
        {"action": kit.action(preview_digest="a" * 64)},
        {"action": kit.action(action_ref="elsewhere:two")},
        {"life_ms": kit.HOUR_MS + 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_approvals_02_another_request_with_the_id(time: Time, changed: dict[str, Any]) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    before = ApprovalRequest.objects.values().get()
    with pytest.raises(MutationConflict):
        services.create(kit.wish(c.agent, **changed))
    assert ApprovalRequest.objects.values().get() == before


def test_approvals_02_another_requester_with_the_id(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    other = people.other_subject("agent")
    people.give(other, "operator")
    with pytest.raises(MutationConflict):
        kit.requested(other)
    assert count() == 1


@pytest.mark.parametrize("role", ["admin", "owner", "operator", "viewer", None])
def test_approvals_03_who_may_act_or_may_nothing_files_nothing(time: Time, role: str | None) -> None:
    person = people.account("own")
    if role:
        people.give(person, role)
    with pytest.raises(ApprovalPolicyDenied):
        kit.requested(people.subject(person))
    assert count() == 0


@pytest.mark.parametrize("role", [None, "viewer"])
def test_approvals_03_an_agent_without_the_right(time: Time, role: str | None) -> None:
    agent = people.other_subject("agent")
    if role:
        people.give(agent, role)
    with pytest.raises(ApprovalPolicyDenied):
        kit.requested(agent)
    assert count() == 0


def test_approvals_04_how_long_it_may_live(time: Time) -> None:
    c = kit.cast()
    for life in (0, -1, kit.DAY_MS + 1, True, 1.5, "1"):
        with pytest.raises(InvalidApprovalValue):
            kit.requested(c.agent, life_ms=life)
    assert count() == 0
    assert kit.requested(c.agent, life_ms=kit.DAY_MS).expires_at == clock.from_ms(time.ms + kit.DAY_MS)
    kit.requested(c.agent, "r-2", life_ms=1)


@pytest.mark.parametrize("digest", ["A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", "g" * 64, "", None, 7])
@pytest.mark.parametrize("which", ["action_digest", "preview_digest"])
def test_approvals_05_what_is_no_digest(which: str, digest: Any) -> None:
    with pytest.raises(InvalidApprovalValue):
        kit.action(**{which: digest})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("permission", "tool.call:"), ("permission", "run.*"), ("permission", "*"), ("permission", "run.start\n"),
        ("action_type", ""), ("action_type", "a" * 65), ("action_type", "run.create\n"), ("action_type", "-run"),
        ("action_ref", "a" * 256), ("action_ref", "a b"), ("action_ref", "ä"), ("action_ref", "x\n"),
    ],
)  # fmt: skip
def test_approvals_05_what_is_no_action(field: str, value: str) -> None:
    with pytest.raises(InvalidInput):
        kit.action(**{field: value})


def test_approvals_05_nothing_unknown_or_missing(time: Time) -> None:
    c = kit.cast()
    with pytest.raises(TypeError):
        kit.action(comment="please")
    for changed in ({"id": "a\n"}, {"id": "a" * 65}, {"id": ""}, {"risk": "none"}, {"project_id": "a\x00"}):
        with pytest.raises(InvalidInput):
            kit.wish(c.agent, **{"id": "r-1", **changed})
    # A permission that does not belong to the action would be a way round the policy.
    with pytest.raises(InvalidApprovalValue):
        kit.requested(c.agent, action=kit.action(permission="task.update"))
    with pytest.raises(InvalidApprovalValue):
        kit.requested(c.agent, action=kit.action(action_type="run.destroy"))
    caller = people.api(c.agent)
    task = kit.task()
    body = {"id": "r-1", "action_type": "run.create", "task": str(task.pk)}
    for wrong in (
        {"comment": "please"},
        {"requested_by": {"type": "user", "id": "x"}},
        {"action_digest": "a" * 64},
    ):
        answer = caller("POST", "projects/default/approvals", {**body, **wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    for missing in ("id", "task"):
        sent = {name: value for name, value in body.items() if name != missing}
        assert caller("POST", "projects/default/approvals", sent).status_code == 400
    assert count() == 0


@pytest.mark.parametrize("role", [None, "operator", "admin"])
def test_approvals_06_the_role_changes_in_between(
    time: Time, monkeypatch: pytest.MonkeyPatch, role: str | None
) -> None:
    c = kit.cast()
    kit.between(monkeypatch, lambda: people.give(c.agent, role, version=2))
    with pytest.raises(PolicyFenceConflict):
        kit.requested(c.agent)
    assert count() == 0
