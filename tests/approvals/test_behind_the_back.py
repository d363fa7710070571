"""Rows that nobody's approval stands behind: written past the services, or left by a copy that was put together."""

from __future__ import annotations

from typing import Any

import pytest

from apps.approvals.errors import DispatchBindingConflict
from apps.approvals.models import ApprovalRequest, ApprovedActionDispatch, ApprovedActionExecution
from apps.approvals.services import Consumption, execution
from apps.core import clock
from tests import people
from tests.approvals import action_kit, kit
from tests.conftest import Time
from tests.runs.kit import thawed

pytestmark = pytest.mark.django_db


def slipped_in(request: ApprovalRequest, **changed: Any) -> ApprovedActionDispatch:
    """A dispatch that is right in itself, with its execution."""
    values = {
        name: getattr(request, name)
        for name in (
            "project_id", "permission", "action_type", "action_ref", "action_digest", "preview_digest",
            "requested_by_type", "requested_by_id",
        )
    }  # fmt: skip
    wish = Consumption.of(request)
    values |= {
        "id": wish.dispatch_id, "approval_request": request, "approval_request_version": 3,
        "consumed_by_type": "system", "consumed_by_id": "approvals", "created_at": clock.now(),
    }  # fmt: skip
    made = ApprovedActionDispatch.objects.create(**{**values, **changed})
    ApprovedActionExecution.objects.create(
        dispatch=made, project_id=made.project_id, eligible_at=made.created_at, created_at=made.created_at,
        updated_at=made.created_at,
    )  # fmt: skip
    return made


@pytest.mark.parametrize("state", ["pending", "rejected", "approved", "expired"])
def test_a_dispatch_without_a_used_approval_starts_nothing(time: Time, state: str) -> None:
    c = kit.cast()
    request = kit.filed(c.agent, kit.task())
    if state in ("approved", "rejected"):
        request = kit.decide(c.admin, kit.verdict(decision=state))
    if state == "expired":
        time.advance(kit.HOUR_MS)
    made = slipped_in(request)
    report = action_kit.dispatch_all()
    assert action_kit.runs() == [] and (report.started, report.unavailable) == (0, 1)
    with pytest.raises(DispatchBindingConflict):
        execution.claim(made.pk, action_kit.OWNER, action_kit.TOKEN, clock.now())
    assert action_kit.fresh(made).status == "pending"


@pytest.mark.parametrize(
    "name", ["action", "preview_digest", "requested_by_id", "consumed_by_id", "created_at"]
)
def test_a_dispatch_that_is_not_what_was_approved_starts_nothing(time: Time, name: str) -> None:
    c = kit.cast()
    other = kit.filed(c.agent, kit.task("other"), "r-2")
    dispatch = action_kit.handed_over(c)
    changed: dict[str, Any] = {
        "action": {"action_ref": other.action_ref, "action_digest": other.action_digest},
        "preview_digest": {"preview_digest": other.preview_digest},
        "requested_by_id": {"requested_by_id": people.other_subject("agent").id},
        "consumed_by_id": {"consumed_by_id": "somebody"},
        "created_at": {"created_at": clock.now()},
    }[name]
    time.advance(1_000)
    if name == "created_at":
        changed = {"created_at": clock.now()}
        ApprovedActionExecution.objects.filter(pk=dispatch.pk).delete()
    with thawed("approved_action_dispatches"):
        ApprovedActionDispatch.objects.filter(pk=dispatch.pk).update(**changed)
    if name == "created_at":
        at = clock.now()
        ApprovedActionExecution.objects.create(
            dispatch_id=dispatch.pk,
            project_id=dispatch.project_id,
            eligible_at=at,
            created_at=at,
            updated_at=at,
        )
    action_kit.dispatch_all()
    assert action_kit.runs() == [] and action_kit.fresh(dispatch).started_at is None


def test_an_approval_taken_back_behind_the_lease_passes_no_barrier(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    held = action_kit.claimed(dispatch)
    with thawed("approval_requests"):
        ApprovalRequest.objects.filter(pk="r-1").update(
            state="rejected", decision="rejected", version=2, dispatch_id=None, consumption_id=None,
            consumed_by_type=None, consumed_by_id=None, consumed_at=None,
        )  # fmt: skip
    with pytest.raises(DispatchBindingConflict):
        execution.start(held, dispatch.approval_request_id, dispatch.action_digest, clock.now())
    assert action_kit.fresh(dispatch).started_at is None


def test_a_credential_that_is_not_for_deciding_shows_no_input(time: Time) -> None:
    c = kit.cast()
    kit.filed(c.agent, kit.task(), input={"card": "4111"}, args=("--now",))
    for scopes in (("project.read",), ("*",)):
        seen = people.api(c.admin, *scopes)("GET", "approvals/r-1")
        assert (seen.status_code, seen.json()["input"], seen.json()["args"]) == (200, None, None)
    for caller in (
        people.api(c.admin, "project.read", "approval.decide"),
        people.api(c.agent, "project.read"),
    ):
        assert caller("GET", "approvals/r-1").json()["input"] == {"card": "4111"}
