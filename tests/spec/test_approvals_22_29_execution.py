"""approvals.md §13, 22–29: what is due, leases, the barrier, and that nothing behind it is done twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DatabaseError

from apps.approvals import dispatching, due, errors
from apps.approvals.contract import Block, Wait
from apps.approvals.models import (
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
)
from apps.approvals.services import execution
from apps.audit.models import AuditEntry
from apps.core import clock
from tests.approvals import action_kit, kit
from tests.approvals.action_kit import OTHER, Effect, Witness, action_type
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time
from tests.runs.kit import race, thawed


def state(dispatch: ApprovedActionDispatch) -> tuple[str, int, int]:
    row = action_kit.fresh(dispatch)
    return row.status, row.version, row.attempt_count


@pytest.mark.django_db
def test_approvals_22_what_is_due(time: Time) -> None:
    c = kit.cast()
    made = []
    for number in range(20):
        made.append(action_kit.handed_over_elsewhere(c, f"r-{number}", action_type="run.create"))
        time.advance(number % 2)  # pairs are eligible at the same moment
    now = action_kit.now()
    expected = sorted((one.created_at, one.pk) for one in made)
    for wrong in (0, 65, True, "16"):
        with pytest.raises(errors.InvalidInput):
            due.executions(now, wrong)  # type: ignore[arg-type]
    first = due.executions(now, 16)
    assert first.dispatch_ids == [pk for _at, pk in expected[:16]]
    assert first.truncated and first.next == expected[15]
    second = due.executions(now, 16, first.next)
    assert second.dispatch_ids == [pk for _at, pk in expected[16:]]
    assert not second.truncated and second.next is None
    assert due.executions(now, 64).dispatch_ids == [pk for _at, pk in expected]
    assert due.executions(now - timedelta(hours=1), 64).dispatch_ids == []
    # Executing and ended ones never appear, leased ones when their time is over.
    by_id = {one.pk: one for one in made}
    running = action_kit.started(by_id[expected[0][1]])
    over = action_kit.started(by_id[expected[1][1]])
    execution.complete(action_kit.held(over), "m-over", "succeeded", "done", now)
    leased = action_kit.claimed(by_id[expected[2][1]])
    gone = {running.dispatch.pk, over.dispatch.pk}
    assert due.executions(now, 64).dispatch_ids == [pk for _at, pk in expected[3:]]
    time.advance(kit.DAY_MS)
    found = due.executions(action_kit.now(), 64).dispatch_ids
    assert not gone & set(found) and found[-1] == leased.subject.pk and len(found) == 18


@pytest.mark.django_db(transaction=True)
def test_approvals_23_two_claim_one(seeded: None) -> None:
    c = kit.cast()
    for number in range(8):
        dispatch = action_kit.handed_over_elsewhere(c, f"r-{number}")
        found = race(
            [
                lambda n=n, d=dispatch: execution.claim(d.pk, f"worker-{n}", f"token-{n}", clock.now()).status
                for n in range(3)
            ]
        )
        assert sorted(found) == ["claimed", "leased", "leased"]
        assert state(dispatch) == ("leased", 1, 1)


@pytest.mark.django_db
def test_approvals_23_taken_over_before_the_start(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    first = action_kit.claimed(dispatch)
    # The same call again while the lease lives is no write.
    assert action_kit.claimed(dispatch).generation == 1
    assert state(dispatch) == ("leased", 1, 1)
    time.advance(action_kit.LEASE_MS - 1)
    assert execution.claim(dispatch.pk, "other", "b" * 64, clock.now()).status == "leased"
    time.advance(1)
    second = action_kit.claimed(dispatch, "other", "b" * 64)
    assert state(dispatch) == ("leased", 2, 2)
    args = (dispatch.approval_request_id, dispatch.action_digest, clock.now())
    for stale in (first, replace(first, generation=2), replace(second, token="c" * 64)):
        with pytest.raises(errors.DispatchFenceRejected):
            execution.start(stale, *args)
    for call in (
        lambda: execution.renew(first, clock.now()),
        lambda: execution.release_before_start(first, "m-1", "gave_up", clock.now()),
        lambda: execution.complete(first, "m-1", "succeeded", "done", clock.now()),
    ):
        with pytest.raises(errors.DispatchFenceRejected):
            call()
    assert execution.start(second, *args).execution.status == "executing"


@pytest.mark.django_db
def test_approvals_23_renewed_before_the_start(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    first = action_kit.claimed(dispatch)
    # A lease that ran out and that nobody took over may still be renewed.
    time.advance(action_kit.LEASE_MS + 5)
    found = execution.renew(first, clock.now(), 1_000)
    row = found.execution
    assert (row.status, row.version, row.attempt_count) == ("leased", 2, 1)
    assert row.eligible_at == row.lease_expires_at == action_kit.later(1_000)
    assert not ApprovedActionRecoveryControl.objects.exists()
    with pytest.raises(errors.DispatchFenceRejected):
        execution.renew(first, clock.now())


@pytest.mark.django_db
def test_approvals_24_no_attempt_left(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    for number in range(5):
        assert execution.claim(dispatch.pk, f"w-{number}", f"t-{number}", clock.now(), 1).status == "claimed"
        time.advance(1)
    assert state(dispatch) == ("leased", 5, 5)
    found = execution.claim(dispatch.pk, "w-6", "t-6", clock.now())
    assert found.status == "blocked"
    row = action_kit.fresh(dispatch)
    assert (row.status, row.result_mutation_id, row.last_result_code) == (
        "blocked", "exhausted:5", "attempt_budget_exhausted",
    )  # fmt: skip
    assert (row.version, row.completed_at, row.lease_owner, row.eligible_at) == (6, clock.now(), None, None)
    assert execution.claim(dispatch.pk, "w-7", "t-7", clock.now()).status == "blocked"
    assert action_kit.dispatch_all().scanned == 0
    entry = AuditEntry.objects.get(action="approval.action_blocked")
    assert entry.metadata["result_code"] == "attempt_budget_exhausted"


@pytest.mark.django_db
def test_approvals_25_no_handler(time: Time) -> None:
    c = kit.cast()
    with action_type():
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        for attempt, wait in enumerate((1_000, 2_000, 4_000, 8_000), 1):
            report = action_kit.dispatch_all()
            assert (report.claimed, report.retrying, report.blocked) == (1, 1, 0)
            row = action_kit.fresh(dispatch)
            assert (row.status, row.attempt_count, row.last_result_code) == (
                "retry_wait", attempt, "handler_unavailable",
            )  # fmt: skip
            assert row.eligible_at == row.next_attempt_at == action_kit.later(wait)
            time.advance(wait - 1)
            assert action_kit.dispatch_all().scanned == 0
            assert execution.claim(dispatch.pk, "w", "t", clock.now()).status == "not_due"
            time.advance(1)
        report = action_kit.dispatch_all()
        assert (report.retrying, report.blocked) == (0, 1)
    row = action_kit.fresh(dispatch)
    assert (row.status, row.attempt_count, row.last_result_code, row.started_at) == (
        "blocked", 5, "handler_unavailable", None,
    )  # fmt: skip
    assert dispatching.retry_delay_ms(16) == 60_000
    assert [dispatching.retry_delay_ms(n) for n in (1, 2, 6, 7)] == [1_000, 2_000, 32_000, 60_000]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (RuntimeError("secret words"), "retry_wait", "handler_inspection_failed"),
        (None, "retry_wait", "handler_inspection_failed"),
        ({"ready": True}, "retry_wait", "handler_inspection_failed"),
        (Wait("not yet!"), "retry_wait", "handler_inspection_failed"),
        (Wait("not_yet"), "retry_wait", "not_yet"),
        (Block("never_again"), "blocked", "never_again"),
    ],
)
def test_approvals_25_what_inspection_may_say(time: Time, answer: object, status: str, code: str) -> None:
    c = kit.cast()
    effect = Effect()
    effect.inspect = lambda _dispatch: action_kit._answer(answer)  # type: ignore[method-assign]
    with action_type(effect):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        action_kit.dispatch_all()
    row = action_kit.fresh(dispatch)
    assert (row.status, row.last_result_code, row.started_at, effect.executed) == (status, code, None, 0)


@pytest.mark.django_db
def test_approvals_25_one_that_fails_does_not_stop_the_others(time: Time) -> None:
    c = kit.cast()
    effect = Effect()
    with action_type(effect):
        broken = action_kit.handed_over_elsewhere(c, "r-1", action_type=OTHER)
        good = action_kit.handed_over_elsewhere(c, "r-2", action_type=OTHER)
        with thawed("approved_action_dispatches"):
            ApprovedActionDispatch.objects.filter(pk=broken.pk).update(action_ref="not an identifier")
        report = action_kit.dispatch_all()
    assert (report.scanned, report.unavailable, report.succeeded) == (2, 1, 1)
    assert (state(broken)[0], state(good)[0]) == ("pending", "succeeded")


@pytest.mark.django_db
def test_approvals_26_another_digest(time: Time) -> None:
    from apps.approvals.contract import Ready

    c = kit.cast()
    effect = Effect(inspects=Ready("f" * 64))
    with action_type(effect):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        report = action_kit.dispatch_all()
    row = action_kit.fresh(dispatch)
    assert (row.status, row.last_result_code, row.attempt_count) == ("blocked", "action_digest_mismatch", 1)
    assert (report.blocked, report.started, effect.executed) == (1, 0, 0)
    assert row.started_at is None and not ApprovedActionRecoveryControl.objects.exists()


@pytest.mark.django_db
def test_approvals_26_another_binding(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    held = action_kit.claimed(dispatch)
    for request, digest in (("r-2", dispatch.action_digest), ("r-1", "f" * 64)):
        with pytest.raises(errors.DispatchBindingConflict):
            execution.start(held, request, digest, clock.now())
    assert state(dispatch) == ("leased", 1, 1)


@pytest.mark.django_db(transaction=True)
def test_approvals_27_the_barrier(seeded: None, time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    held = action_kit.claimed(dispatch)
    args = (dispatch.approval_request_id, dispatch.action_digest)
    expiry = action_kit.fresh(dispatch).lease_expires_at
    assert expiry is not None
    with pytest.raises(errors.DispatchFenceRejected):
        execution.start(held, *args, expiry)
    with (
        action_kit.failing_to_store(ApprovedActionRecoveryControl, DatabaseError("no")),
        pytest.raises(errors.DispatchRepositoryError),
    ):
        execution.start(held, *args, clock.now())
    assert state(dispatch) == ("leased", 1, 1) and not ApprovedActionRecoveryControl.objects.exists()
    at = expiry - timedelta(milliseconds=1)
    found = execution.start(held, *args, at)
    row = found.execution
    assert (row.status, row.version, row.started_at, row.eligible_at) == ("executing", 2, at, None)
    control = action_kit.control(dispatch)
    assert (control.status, control.version, control.execution_version) == ("armed", 0, 2)
    assert control.next_scan_at == expiry and control.created_at == control.updated_at == at
    # The same again is the same; at another time it is another start.
    assert execution.start(held, *args, at).execution.version == 2
    with pytest.raises(errors.DispatchFenceRejected):
        execution.start(held, *args, at - timedelta(milliseconds=1))


@pytest.mark.django_db(transaction=True)
def test_approvals_27_start_against_takeover(seeded: None, time: Time) -> None:
    c = kit.cast()
    for number in range(6):
        dispatch = action_kit.handed_over_elsewhere(c, f"r-{number}")
        held = action_kit.claimed(dispatch, ms=1_000)
        just, over = action_kit.later(999), action_kit.later(1_000)
        outcomes = race(
            [
                lambda h=held, d=dispatch, at=just: kit.outcome(
                    lambda: execution.start(h, d.approval_request_id, d.action_digest, at)
                ),
                lambda d=dispatch, at=over: execution.claim(d.pk, "other", "b" * 64, at).status,
            ]
        )
        assert outcomes in (
            ["ok", "executing"],
            ["ok", "recovery_required"],
            ["approved_action_dispatch_fence_rejected", "claimed"],
        )


@pytest.mark.django_db
@pytest.mark.parametrize("answer", [RuntimeError("secret words"), None, {"outcome": "succeeded"}])
def test_approvals_28_the_handler_fails(time: Time, answer: object) -> None:
    c = kit.cast()
    effect = Effect(executes=answer)
    with action_type(effect):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        report = action_kit.dispatch_all()
        assert (report.started, report.blocked) == (1, 1)
        time.advance(kit.DAY_MS)
        assert action_kit.dispatch_all().scanned == 0 and action_kit.recover_all().scanned == 0
    row = action_kit.fresh(dispatch)
    assert (row.status, row.last_result_code) == ("blocked", "handler_failed_after_start")
    control = action_kit.control(dispatch)
    assert (control.status, control.resolution_mutation_id) == ("resolved", row.result_mutation_id)
    assert control.execution_version == row.version
    assert not ApprovedActionRecoveryResolution.objects.exists()
    assert effect.executed == 1


@pytest.mark.django_db
def test_approvals_28_the_end_cannot_be_written(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    c = kit.cast()
    effect, witness = Effect(), Witness(action_kit.Evidence("missing", "nothing_seen"))

    def fail(*_args: object) -> None:
        raise errors.DispatchRepositoryError

    with action_type(effect, witness):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        with monkeypatch.context() as broken:
            broken.setattr(dispatching, "_complete", fail)
            report = action_kit.dispatch_all()
        assert (report.started, report.recovery_required, report.unavailable) == (1, 1, 1)
        assert state(dispatch)[0] == "executing"
        time.advance(kit.HOUR_MS)
        assert action_kit.dispatch_all().scanned == 0
    assert effect.executed == 1


@pytest.mark.django_db
def test_approvals_29_nobody_does_it_again(time: Time) -> None:
    c = kit.cast()
    effect = Effect()
    with action_type(effect):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        snapshot = action_kit.started(dispatch)
        effect.execute(snapshot, dispatch.pk, action_kit.held(snapshot))
        time.advance(action_kit.LEASE_MS - 1)
        assert execution.claim(dispatch.pk, "other", "b" * 64, clock.now()).status == "executing"
        time.advance(1)
        found = execution.claim(dispatch.pk, "other", "b" * 64, clock.now())
        assert found.status == "recovery_required" and found.snapshot is not None
        assert found.snapshot.status(clock.now()) == "recovery_required"
        assert action_kit.dispatch_all().scanned == 0
        # Its old owner, too, gets it only to end it.
        again = execution.claim(dispatch.pk, action_kit.OWNER, action_kit.TOKEN, clock.now())
        assert again.status == "recovery_required"
    assert effect.executed == 1
    assert ApprovedActionExecution.objects.get().status == "executing", "it is never stored"
