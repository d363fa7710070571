"""approvals.md §13, 21, and §3: the database itself refuses what no row may be; §9: the vectors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from apps.approvals import digests
from apps.approvals.models import (
    ApprovalLapse,
    ApprovalRequest,
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionPlan,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
    ApprovedRunReceipt,
)
from apps.approvals.plans import Plan
from apps.core import clock
from tests.approvals import kit
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time
from tests.runs import kit as runs

AT = clock.from_ms(1_000_000)
LATER = clock.from_ms(1_001_000)
END = clock.from_ms(1_000_000 + kit.HOUR_MS)
DIGEST = "a" * 64

REQUEST: dict[str, Any] = {
    "project_id": "default", "version": 1, "state": "pending", "permission": "run.start", "action_type": "run.create",
    "action_ref": "plan:1", "action_digest": DIGEST, "preview_digest": DIGEST, "risk": "low",
    "requested_by_type": "agent", "requested_by_id": "a-1", "requested_at": AT, "expires_at": END,
}  # fmt: skip
DECIDED = {
    "version": 2, "state": "approved", "decision": "approved", "decision_reason_code": "ok",
    "decided_by_type": "user", "decided_by_id": "u-1", "decided_at": LATER,
}  # fmt: skip
CONSUMED = {
    "version": 3, "state": "consumed", "dispatch_id": "x", "consumed_by_type": "system", "consumed_by_id": "s",
    "consumed_at": LATER,
}  # fmt: skip


def request(id: str, **changed: Any) -> ApprovalRequest:
    return ApprovalRequest.objects.create(id=id, **{**REQUEST, **changed})


def decided(id: str, **changed: Any) -> ApprovalRequest:
    return request(id, **{**DECIDED, "decision_id": f"d-{id}", **changed})


def consumed(id: str, **changed: Any) -> ApprovalRequest:
    return decided(id, **{**CONSUMED, "consumption_id": f"c-{id}", **changed})


def refused(call: Any) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        call()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changed",
    [
        {"version": 0}, {"version": 4}, {"state": "open"}, {"risk": "none"}, {"requested_by_type": "robot"},
        {"expires_at": AT}, {"expires_at": AT + timedelta(days=1, milliseconds=1)},
        {"requested_at": clock.from_ms(0) - timedelta(milliseconds=1)},
        {"action_digest": "a" * 63}, {"preview_digest": "a" * 63}, {"longest_life_ms": kit.DAY_MS * 2},
        {"state": "approved"}, {"state": "approved", "version": 2}, {"version": 2},
        {"decision_id": "d"}, {"decided_at": LATER}, {"consumption_id": "c"},
    ],
    ids=str,
)  # fmt: skip
def test_approvals_21_no_such_request(changed: dict[str, Any]) -> None:
    request("fine")
    refused(lambda: request("r", **changed))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changed",
    [
        {"version": 1}, {"version": 3}, {"state": "pending"}, {"state": "rejected"}, {"decision": "rejected"},
        {"decision": "perhaps"}, {"decided_at": None}, {"decision_id": None}, {"decision_reason_code": None},
        {"decided_by_id": None}, {"decided_by_type": None}, {"decision": None}, {"decided_by_type": "agent"},
        {"decided_by_type": "robot"}, {"decided_at": END}, {"decided_at": AT - timedelta(milliseconds=1)},
        {"state": "consumed", "version": 3}, {"decision_id": "d-fine"},
        {"requested_by_type": "user", "requested_by_id": "u-1"},
    ],
    ids=str,
)  # fmt: skip
def test_approvals_21_no_such_decision(changed: dict[str, Any]) -> None:
    decided("fine", decided_at=END - timedelta(milliseconds=1))
    decided("no", state="rejected", decision="rejected")
    refused(lambda: decided("r", **changed))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changed",
    [
        {"state": "approved", "version": 2}, {"version": 2}, {"decision": "rejected"}, {"consumed_at": END},
        {"consumed_at": LATER - timedelta(milliseconds=1)}, {"consumption_id": None}, {"dispatch_id": None},
        {"consumed_by_type": None}, {"consumed_by_id": None}, {"consumed_at": None}, {"consumed_by_type": "robot"},
        {"consumption_id": "c-fine"},
    ],
    ids=str,
)  # fmt: skip
def test_approvals_21_no_such_consumption(changed: dict[str, Any]) -> None:
    consumed("fine")
    refused(lambda: consumed("r", **changed))


def dispatch(id: str, **changed: Any) -> ApprovedActionDispatch:
    values = {
        "approval_request_id": id, "approval_request_version": 3, "project_id": "default", "permission": "run.start",
        "action_type": "run.create", "action_ref": "plan:1", "action_digest": DIGEST, "preview_digest": DIGEST,
        "requested_by_type": "agent", "requested_by_id": "a-1", "consumed_by_type": "system", "consumed_by_id": "s",
        "created_at": AT,
    }  # fmt: skip
    if "approval_request_id" not in changed:
        consumed(id)
    return ApprovedActionDispatch.objects.create(id=f"x-{id}", **{**values, **changed})


LEASE = {"lease_owner": "w", "lease_token": "t", "lease_expires_at": LATER}
RESULT = {"result_mutation_id": "m", "last_result_code": "c"}
STATES: dict[str, dict[str, Any]] = {
    "pending": {"eligible_at": AT},
    "leased": {"version": 1, "attempt_count": 1, "eligible_at": LATER, **LEASE},
    "executing": {"version": 2, "attempt_count": 1, "started_at": AT, **LEASE},
    "retry_wait": {
        "version": 2,
        "attempt_count": 1,
        "eligible_at": LATER,
        "next_attempt_at": LATER,
        **RESULT,
    },
    "succeeded": {"version": 3, "attempt_count": 1, "started_at": AT, "completed_at": AT, **RESULT},
    "failed": {"version": 3, "attempt_count": 1, "started_at": AT, "completed_at": AT, **RESULT},
    "blocked": {"version": 3, "attempt_count": 1, "completed_at": AT, **RESULT},
}


def execution(state: str = "leased", /, **changed: Any) -> ApprovedActionExecution:
    made = dispatch(kit.new_id())
    values = {"project_id": "default", "status": state, "created_at": AT, "updated_at": AT}
    return ApprovedActionExecution.objects.create(dispatch=made, **{**values, **STATES[state], **changed})


@pytest.mark.django_db
def test_approvals_21_dispatches() -> None:
    dispatch("fine")
    for changed in (
        {"approval_request_version": 2}, {"state": "done"}, {"requested_by_type": "robot"},
        {"consumed_by_type": "user"}, {"created_at": clock.from_ms(0) - timedelta(milliseconds=1)},
    ):  # fmt: skip
        refused(lambda changed=changed: dispatch(kit.new_id(), **changed))
    refused(lambda: dispatch("again", approval_request_id="fine"))


@pytest.mark.django_db
@pytest.mark.parametrize("status", STATES)
def test_approvals_21_executions(status: str) -> None:
    execution(status)
    wrong: list[dict[str, Any]] = [
        {"version": -1}, {"attempt_count": 17, "max_attempts": 17}, {"attempt_count": 6}, {"max_attempts": 0},
        {"status": "waiting"}, {"updated_at": AT - timedelta(milliseconds=1), "completed_at": None},
    ]  # fmt: skip
    others = {
        "eligible_at": LATER, "next_attempt_at": LATER, "started_at": AT, "completed_at": AT, **LEASE, **RESULT,
    }  # fmt: skip
    needed = set(STATES[status]) - {
        "version",
        "attempt_count",
        *(["started_at"] if status == "blocked" else []),
    }
    wrong += [{name: None} for name in needed]
    free = {"started_at"} if status == "blocked" else set()
    wrong += [
        {name: value} for name, value in others.items() if name not in STATES[status] and name not in free
    ]
    if status != "pending":
        wrong.append(
            {"attempt_count": 0} if status in ("leased", "executing", "retry_wait") else {"version": -1}
        )
    for changed in wrong:
        refused(lambda changed=changed: execution(status, **changed))
    if "lease_owner" in STATES[status]:
        for end in (AT, AT + timedelta(minutes=10, milliseconds=1)):
            more = {"lease_expires_at": end} | ({"eligible_at": end} if status == "leased" else {})
            refused(lambda more=more: execution(status, **more))
        most = AT + timedelta(minutes=10)
        execution(status, lease_expires_at=most, **({"eligible_at": most} if status == "leased" else {}))


def control(state: str = "armed", /, **changed: Any) -> ApprovedActionRecoveryControl:
    found = {
        "finding_count": 1,
        "last_finding_mutation_id": "m",
        "last_finding": "missing",
        "last_result_code": "c",
    }
    states: dict[str, dict[str, Any]] = {
        "armed": {"next_scan_at": LATER},
        "leased": {"next_scan_at": LATER, **LEASE},
        "manual_required": found,
        "resolved": {"resolution_mutation_id": "m"},
    }
    values = {
        "project_id": "default", "execution_version": 2, "status": state, "created_at": AT, "updated_at": AT,
    }  # fmt: skip
    made = changed.pop("of", None) or execution("executing")
    return ApprovedActionRecoveryControl.objects.create(
        dispatch=made, **{**values, **states[state], **changed}
    )


@pytest.mark.django_db
def test_approvals_21_recovery_controls() -> None:
    for status in ("armed", "leased", "manual_required", "resolved"):
        control(status)
    for status, changed in (
        ("armed", {"status": "lost"}), ("armed", {"execution_version": 0}), ("armed", {"version": -1}),
        ("armed", {"finding_count": 1}), ("armed", {"last_finding": "missing"}), ("armed", {"next_scan_at": AT}),
        ("armed", {"next_scan_at": None}), ("armed", {"lease_owner": "w"}), ("armed", {"resolution_mutation_id": "m"}),
        ("armed", LEASE), ("leased", {"lease_token": None}), ("leased", {"next_scan_at": END}),
        ("manual_required", {"finding_count": 0}), ("manual_required", {"last_finding": "guessed"}),
        ("manual_required", {"next_scan_at": LATER}), ("manual_required", {"last_evidence_digest": "a" * 63}),
        ("resolved", {"resolution_mutation_id": None}), ("resolved", {"next_scan_at": LATER}),
        ("armed", {"updated_at": AT - timedelta(milliseconds=1)}),
        ("leased", dict.fromkeys(("next_scan_at", "lease_expires_at"), AT + timedelta(minutes=10, milliseconds=1))),
    ):  # fmt: skip
        refused(lambda status=status, changed=changed: control(status, **changed))


def resolution(**changed: Any) -> ApprovedActionRecoveryResolution:
    values = {
        "project_id": "default", "execution_version": 2, "mutation_id": kit.new_id(), "source": "human",
        "decision": "abandon_unknown", "reason_code": "looked", "resolved_by_type": "user", "resolved_by_id": "u-1",
        "resolved_at": AT,
    }  # fmt: skip
    return ApprovedActionRecoveryResolution.objects.create(
        dispatch=control("resolved"), **{**values, **changed}
    )


AUTOMATIC = {
    "source": "automatic_evidence", "decision": "confirm_succeeded", "evidence_digest": DIGEST,
    "resolved_by_type": None, "resolved_by_id": None,
}  # fmt: skip


@pytest.mark.django_db
def test_approvals_21_recovery_resolutions() -> None:
    resolution(mutation_id="m-1")
    resolution(**AUTOMATIC)
    for changed in (
        {"execution_version": 0}, {"source": "guess"}, {"decision": "retry"}, {"resolved_by_type": "agent"},
        {"resolved_by_id": None}, {"resolved_by_type": None}, {"evidence_digest": "a" * 63}, {"mutation_id": "m-1"},
        {**AUTOMATIC, "decision": "abandon_unknown"}, {**AUTOMATIC, "evidence_digest": None},
        {**AUTOMATIC, "resolved_by_type": "user", "resolved_by_id": "u-1"},
        {"resolved_by_type": None, "resolved_by_id": None},
        {"resolved_at": clock.from_ms(0) - timedelta(milliseconds=1)},
    ):  # fmt: skip
        refused(lambda changed=changed: resolution(**changed))


def authorization(**changed: Any) -> ApprovedActionRecoveryAuthorization:
    values = {
        "project_id": "default", "mutation_id": kit.new_id(), "resolved_by_id": "u-1", "authentication_id": "auth-1",
        "assurance": "multi_factor", "authenticated_at": AT, "project_version": 1, "binding_version": 1,
        "authorized_at": AT + timedelta(minutes=5), "fact_digest": DIGEST,
    }  # fmt: skip
    return ApprovedActionRecoveryAuthorization.objects.create(dispatch=resolution(), **{**values, **changed})


@pytest.mark.django_db
def test_approvals_21_recovery_authorizations() -> None:
    authorization(mutation_id="m-1")
    for changed in (
        {"assurance": "single_factor"}, {"project_version": 0}, {"binding_version": 0}, {"fact_digest": "a"},
        {"authorized_at": AT + timedelta(minutes=5, milliseconds=1)}, {"mutation_id": "m-1"},
        {"authorized_at": AT - timedelta(milliseconds=1)},
    ):  # fmt: skip
        refused(lambda changed=changed: authorization(**changed))


def receipt(**changed: Any) -> ApprovedRunReceipt:
    made = execution("executing").dispatch
    values = {
        "approval_request_id": made.approval_request_id, "project_id": "default", "action_digest": DIGEST,
        "execution_attempt": 1, "execution_version": 2, "started_at": AT, "idempotency_key": made.pk,
        "finished_at": LATER, "created_at": LATER, "evidence_digest": DIGEST,
    }  # fmt: skip
    if "resource_id" not in changed:
        changed["resource_id"] = runs.run_of(kit.task(kit.new_id())).pk
    return ApprovedRunReceipt.objects.create(dispatch=made, **{**values, **changed})


@pytest.mark.django_db
def test_approvals_21_receipts() -> None:
    first = receipt()
    for changed in (
        {"schema_version": 2}, {"action_type": "run.stop"}, {"outcome": "failed"}, {"result_code": "done"},
        {"resource_type": "task"}, {"execution_attempt": 0}, {"execution_attempt": 17}, {"execution_version": 0},
        {"idempotency_key": "other"}, {"finished_at": AT}, {"started_at": LATER + timedelta(milliseconds=1)},
        {"evidence_digest": "a"}, {"resource_id": first.resource_id},
    ):  # fmt: skip
        refused(lambda changed=changed: receipt(**changed))


# -- what is written stays ----------------------------------------------------------------------------------


def _kept(time: Time) -> list[Any]:
    c = kit.cast()
    kit.filed(c.agent, kit.task())
    made = [authorization(), receipt()]
    made += [made[0].dispatch, made[0].dispatch.dispatch.dispatch.dispatch, ApprovedActionPlan.objects.get()]
    request = ApprovalRequest.objects.get(pk="r-1")
    return [
        *made,
        ApprovalLapse.objects.create(request=request, project_id="default", code="expired", lapsed_at=AT),
    ]


@pytest.mark.django_db
def test_approvals_21_evidence_is_never_changed_or_removed(time: Time) -> None:
    for row in _kept(time):
        model: Any = type(row)
        before = list(model.objects.order_by("pk").values())
        with pytest.raises(DatabaseError, match="immutable"), transaction.atomic():
            row.save()
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {model._meta.db_table}")
        assert list(model.objects.order_by("pk").values()) == before


@pytest.mark.django_db
def test_approvals_21_the_barrier_is_never_cleared_and_an_end_is_an_end() -> None:
    row = execution("executing")
    rows = ApprovedActionExecution.objects.filter(pk=row.pk)
    for changed in (
        {"started_at": None, "status": "leased", "eligible_at": LATER}, {"started_at": LATER}, {"max_attempts": 16},
        {"created_at": clock.from_ms(0)},
    ):  # fmt: skip
        with pytest.raises(DatabaseError), transaction.atomic():
            rows.update(**changed)
    done = dict.fromkeys(("lease_owner", "lease_token", "lease_expires_at"))
    rows.update(status="succeeded", version=3, completed_at=AT, **RESULT, **done)
    for changed in ({"status": "failed"}, {"last_result_code": "other"}, {"version": 4}):
        with pytest.raises(DatabaseError, match="immutable"), transaction.atomic():
            rows.update(**changed)
    closed = ApprovedActionRecoveryControl.objects.filter(pk=control("resolved").pk)
    with pytest.raises(DatabaseError, match="immutable"), transaction.atomic():
        closed.update(status="armed", next_scan_at=LATER, resolution_mutation_id=None)


# -- digests ------------------------------------------------------------------------------------------------

PLAN_DIGEST = "e1f532922d248f30d20cd572ed11174ee29e0c721b19a110a92315b55d49b505"


def test_approvals_30_vector_of_the_plan() -> None:
    assert Plan("plan:1", "default", "t1", "r1", "local_process", 0).digest == PLAN_DIGEST


def test_approvals_30_vector_of_the_receipt() -> None:
    values = (
        1, "disp-1", "apr-1", "default", "run.create", PLAN_DIGEST, 1, 2, 1000, "disp-1", "succeeded",
        "approved_run_created", "run", "run-1", 1005, 1005,
    )  # fmt: skip
    found = digests.of(digests.RECEIPT, dict(zip(digests.RECEIPT, values, strict=True)))
    assert found == "72ec2fbd91b6397e66c4a6292c658f77189e239b1793bc3d3d6a9a149fa0fb3e"


def test_approvals_39_vector_of_the_authorization() -> None:
    values = ("disp-1", "default", "mut-1", "user", "u-2", "auth-1", "multi_factor", 1000, 1, 1, 61000)
    found = digests.of(digests.AUTHORIZATION, dict(zip(digests.AUTHORIZATION, values, strict=True)))
    assert found == "b04a2589bfe81c792b422ffe8aadde65a3c6fb19b7e460b543aaded0ff8404d4"


def test_a_document_has_exactly_its_members() -> None:
    values = dict.fromkeys(digests.AUTHORIZATION, "x")
    for wrong in ({**values, "more": 1}, dict(list(values.items())[1:])):
        with pytest.raises(ValueError, match="members"):
            digests.of(digests.AUTHORIZATION, wrong)
