"""approvals.md §13, 35–38: evidence closes what its process left open, and nothing else does by itself."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, transaction

from apps.approvals import due, errors, receipts, recovery
from apps.approvals.action_records import receipt_digest
from apps.approvals.actions.run_create import RunEvidence
from apps.approvals.contract import Evidence, holding_control
from apps.approvals.models import ApprovedActionRecoveryResolution, ApprovedRunReceipt
from apps.approvals.services import execution
from apps.approvals.services import recovery as store
from apps.approvals.services.recovery import Found, Resolution
from apps.approvals.services.run_creation import create_approved_run
from apps.audit.models import AuditEntry
from apps.core import clock
from tests.approvals import action_kit, kit
from tests.approvals.action_kit import OTHER, Effect, Witness, action_type
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time
from tests.runs import kit as runs_kit
from tests.runs.kit import thawed

RECONCILER, TOKEN = "reconciler:tests", "d" * 64


@pytest.mark.django_db
def test_approvals_35_died_between_receipt_and_end(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    create_approved_run(snapshot, action_kit.plan(dispatch))
    time.advance(29_999)
    assert action_kit.recover_all().scanned == 0
    time.advance(1)
    report = action_kit.recover_all()
    assert (report.scanned, report.claimed, report.verified_succeeded) == (1, 1, 1)
    row = action_kit.fresh(dispatch)
    assert (row.status, row.last_result_code, row.completed_at) == (
        "succeeded", "approved_run_receipt_verified", clock.now(),
    )  # fmt: skip
    resolution = ApprovedActionRecoveryResolution.objects.get()
    assert (resolution.source, resolution.decision, resolution.resolved_by_id) == (
        "automatic_evidence", "confirm_succeeded", None,
    )  # fmt: skip
    [receipt] = action_kit.receipts()
    assert resolution.evidence_digest == receipt.evidence_digest
    assert resolution.execution_version + 1 == row.version
    control = action_kit.control(dispatch)
    assert (control.status, control.last_finding, control.finding_count) == (
        "resolved", "verified_succeeded", 1,
    )  # fmt: skip
    assert control.resolution_mutation_id == row.result_mutation_id == resolution.mutation_id
    with pytest.raises(errors.DispatchFenceRejected):
        execution.complete(
            action_kit.held(snapshot), "late", "succeeded", "approved_run_created", clock.now()
        )
    assert len(action_kit.runs()) == 1 and action_kit.recover_all().scanned == 0
    entry = AuditEntry.objects.get(action="approval.action_succeeded")
    assert entry.metadata["recovered"] is True and entry.actor_type == "system"


@pytest.mark.django_db(transaction=True)
def test_approvals_35_late_end_against_recovery(seeded: None, time: Time) -> None:
    """Exactly one of both moves the execution, whoever comes first."""
    c = kit.cast()
    for number in range(6):
        dispatch = action_kit.handed_over(c, id=f"r-{number}")
        snapshot = action_kit.started(dispatch)
        create_approved_run(snapshot, action_kit.plan(dispatch))
        time.advance(30_000)
        claimed = store.claim(dispatch.pk, RECONCILER, TOKEN, clock.now()).snapshot
        assert claimed is not None
        digest = ApprovedRunReceipt.objects.get(pk=dispatch.pk).evidence_digest
        wish = Resolution(
            dispatch.pk, claimed.execution.version, claimed.control.version, f"m-{number}", "confirm_succeeded",
            "approved_run_receipt_verified", clock.now(), digest, holding_control(claimed.control),
        )  # fmt: skip
        ended, resolved = runs_kit.race(
            [
                lambda s=snapshot, n=number: kit.outcome(
                    lambda: execution.complete(
                        action_kit.held(s), f"e-{n}", "succeeded", "approved_run_created", clock.now()
                    )
                ),
                lambda w=wish: store.resolve(w).status,
            ]
        )
        first = action_kit.fresh(dispatch).result_mutation_id
        assert (ended, resolved, first) in (
            ("ok", "already_terminal", f"e-{number}"),
            ("approved_action_dispatch_fence_rejected", "resolved", f"m-{number}"),
        )
        assert ApprovedActionRecoveryResolution.objects.filter(pk=dispatch.pk).count() == (ended != "ok")


@pytest.mark.django_db(transaction=True)
def test_approvals_35_two_reconcilers(seeded: None, time: Time) -> None:
    c = kit.cast()
    for number in range(4):
        dispatch = action_kit.handed_over(c, id=f"r-{number}")
        create_approved_run(action_kit.started(dispatch), action_kit.plan(dispatch))
        time.advance(30_000)
        reports = runs_kit.race([lambda n=n: recovery.recover_page(f"reconciler:{n}") for n in range(3)])
        assert sum(report.verified_succeeded for report in reports) == 1, reports
    assert ApprovedActionRecoveryResolution.objects.count() == 4


@pytest.mark.django_db
def test_approvals_36_died_before_the_run(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    time.advance(30_000)
    for number, wait in enumerate((5, 10, 20, 40, 80, 160, 300, 300), 1):
        report = action_kit.recover_all()
        assert (report.claimed, report.deferred) == (1, 1)
        control = action_kit.control(dispatch)
        assert (control.status, control.last_finding, control.last_result_code, control.finding_count) == (
            "armed", "missing", "approved_run_receipt_missing", number,
        )  # fmt: skip
        assert control.next_scan_at == action_kit.later(wait * 1_000)
        found = execution.claim(dispatch.pk, "other", "b" * 64, clock.now())
        assert found.status == "recovery_required"
        time.advance(wait * 1_000 - 1)
        assert action_kit.recover_all().scanned == 0
        time.advance(1)
    assert recovery.retry_delay_ms(2**31 - 1) == 300_000
    assert not action_kit.runs() and action_kit.dispatch_all().scanned == 0
    row = execution.complete(
        action_kit.held(snapshot), "late", "failed", "approved_run_plan_disappeared", clock.now()
    ).execution
    assert row.status == "failed"
    control = action_kit.control(dispatch)
    assert (control.status, control.resolution_mutation_id, control.finding_count) == ("resolved", "late", 8)
    assert not ApprovedActionRecoveryResolution.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("changed", ["action_digest", "resource", "execution_attempt"])
def test_approvals_37_an_altered_receipt(time: Time, changed: str) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    create_approved_run(snapshot, action_kit.plan(dispatch))
    other = runs_kit.run_of(kit.task("other"))
    values: dict[str, Any] = {"action_digest": "f" * 64, "resource": other.pk, "execution_attempt": 2}
    with pytest.raises(DatabaseError), transaction.atomic():
        ApprovedRunReceipt.objects.update(**{changed: values[changed]})
    with thawed("approved_run_receipts"):
        ApprovedRunReceipt.objects.update(**{changed: values[changed]})
    time.advance(30_000)
    report = action_kit.recover_all()
    assert report.manual_required == 1
    control = action_kit.control(dispatch)
    assert (control.status, control.last_finding, control.next_scan_at) == (
        "manual_required",
        "conflict",
        None,
    )
    time.advance(kit.DAY_MS)
    assert action_kit.recover_all().scanned == 0
    # Its owner still lives: what it does now is looked at anew.
    execution.renew(action_kit.held(snapshot), clock.now())
    control = action_kit.control(dispatch)
    assert (control.status, control.finding_count, control.last_finding) == ("armed", 1, "conflict")
    assert control.execution_version == action_kit.fresh(dispatch).version
    time.advance(30_000)
    assert action_kit.recover_all().manual_required == 1


@pytest.mark.django_db
def test_approvals_37_a_receipt_of_something_else_with_a_right_digest(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    create_approved_run(action_kit.started(dispatch), action_kit.plan(dispatch))
    other = runs_kit.run_of(kit.task("other"))
    for changed in ({"action_digest": "f" * 64}, {"execution_attempt": 2}, {"resource_id": other.pk}):
        receipt = receipts.of(dispatch.pk)
        assert receipt is not None
        before = dict(receipt.__dict__)
        for name, value in changed.items():
            setattr(receipt, name, value)
        with thawed("approved_run_receipts"):
            ApprovedRunReceipt.objects.update(**changed, evidence_digest=receipt_digest(receipt))
        found = RunEvidence().observe(action_kit.recovering(dispatch), dispatch.pk, clock.now())
        assert (found.finding, found.digest) == ("conflict", None), changed
        with thawed("approved_run_receipts"):
            ApprovedRunReceipt.objects.update(
                **{name: before[name] for name in changed}, evidence_digest=before["evidence_digest"]
            )
    found = RunEvidence().observe(action_kit.recovering(dispatch), dispatch.pk, clock.now())
    assert found.finding == "verified_succeeded"


@pytest.mark.django_db
def test_approvals_37_a_stale_reconciler(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over(c)
    snapshot = action_kit.started(dispatch)
    time.advance(30_000)
    claimed = store.claim(dispatch.pk, RECONCILER, TOKEN, clock.now()).snapshot
    assert claimed is not None
    held = holding_control(claimed.control)
    execution.renew(action_kit.held(snapshot), clock.now())
    with pytest.raises(errors.RecoveryFenceRejected):
        store.record_finding(
            held, 2, Found("f-1", "missing", "nothing", clock.now(), action_kit.later(5_000))
        )
    with pytest.raises(errors.RecoveryFenceRejected):
        store.resolve(
            Resolution(
                dispatch.pk,
                2,
                claimed.control.version,
                "m-1",
                "confirm_succeeded",
                "seen",
                clock.now(),
                "f" * 64,
                held,
            )
        )
    assert action_kit.fresh(dispatch).status == "executing"
    assert store.claim(dispatch.pk, RECONCILER, TOKEN, clock.now()).status == "execution_active"


@pytest.mark.django_db
@pytest.mark.parametrize("provider", [None, Witness(capability="manual_only")])
def test_approvals_38_no_provider(time: Time, provider: Any) -> None:
    c = kit.cast()
    with action_type(Effect(), provider):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        action_kit.started(dispatch)
        time.advance(30_000)
        assert action_kit.recover_all().manual_required == 1
        assert action_kit.recover_all().scanned == 0
    control = action_kit.control(dispatch)
    assert (control.status, control.last_finding, control.last_result_code) == (
        "manual_required", "unsupported", "automatic_recovery_unsupported",
    )  # fmt: skip
    assert provider is None or provider.asked == 0
    assert store.claim(dispatch.pk, RECONCILER, TOKEN, clock.now()).status == "manual_required"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("says", "status", "finding", "code"),
    [
        (RuntimeError("secret words"), "armed", "unavailable", "recovery_evidence_unavailable"),
        (None, "manual_required", "conflict", "recovery_evidence_invalid"),
        (Evidence("verified_succeeded", "seen"), "manual_required", "conflict", "recovery_evidence_invalid"),
        (Evidence("verified_succeeded", "seen", "F" * 64), "manual_required", "conflict", "recovery_evidence_invalid"),
        (Evidence("happened", "seen"), "manual_required", "conflict", "recovery_evidence_invalid"),
        (Evidence("missing", "not a code"), "manual_required", "conflict", "recovery_evidence_invalid"),
        (Evidence("still_running", "busy"), "armed", "still_running", "busy"),
        (Evidence("verified_failed", "seen", "f" * 64), "resolved", "verified_failed", "seen"),
    ],
)  # fmt: skip
def test_approvals_38_what_a_provider_may_say(
    time: Time, says: Any, status: str, finding: str, code: str
) -> None:
    c = kit.cast()
    with action_type(Effect(), Witness(says)):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        action_kit.started(dispatch)
        time.advance(30_000)
        action_kit.recover_all()
    control = action_kit.control(dispatch)
    assert (control.status, control.last_finding, control.last_result_code) == (status, finding, code)
    assert action_kit.fresh(dispatch).status == ("failed" if status == "resolved" else "executing")


@pytest.mark.django_db
def test_what_is_due_for_recovery(time: Time) -> None:
    c = kit.cast()
    made = [action_kit.handed_over_elsewhere(c, f"r-{n}") for n in range(5)]
    for dispatch in made[:4]:
        action_kit.started(dispatch)
    time.advance(30_000)
    first = due.controls(clock.now(), 2)
    assert first.dispatch_ids == sorted(one.pk for one in made[:4])[:2] and first.truncated
    second = due.controls(clock.now(), 2, first.next)
    assert second.dispatch_ids == sorted(one.pk for one in made[:4])[2:] and not second.truncated
    for wrong in (0, 65):
        with pytest.raises(errors.InvalidInput):
            due.controls(clock.now(), wrong)
    assert store.claim("none", RECONCILER, TOKEN, clock.now()).status == "not_found"
    assert store.claim(made[4].pk, RECONCILER, TOKEN, clock.now()).status == "not_found"
