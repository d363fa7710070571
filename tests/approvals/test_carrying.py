"""Repetitions, heartbeats, bounds of a cycle, and what damaged rows come to."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.approvals import dispatching, due, errors, heartbeat, snapshots
from apps.approvals.contract import holding, holding_control
from apps.approvals.cycle import Bounds, Cycle, Phase, Profile
from apps.approvals.models import (
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionRecoveryControl,
)
from apps.approvals.services import execution
from apps.approvals.services import recovery as store
from apps.approvals.services.recovery import Found
from apps.core import clock
from tests.approvals import action_kit, kit
from tests.approvals.action_kit import OTHER, Effect, Evidence, Witness, action_type
from tests.conftest import Time
from tests.runs.kit import thawed

NOTHING = Evidence("missing", "nothing_seen")


@pytest.mark.django_db
def test_the_same_release_again(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    held, at, again = action_kit.claimed(dispatch), action_kit.now(), action_kit.later(1_000)
    first = execution.release_before_start(held, "x-1", "not_now", at, again)
    time.advance(500)
    assert execution.release_before_start(held, "x-1", "not_now", at, again).execution == first.execution
    for args in (
        ("x-2", "not_now", at, again), ("x-1", "never", at, again), ("x-1", "not_now", clock.now(), again),
        ("x-1", "not_now", at, action_kit.later(9_000)), ("x-1", "not_now", at, None),
    ):  # fmt: skip
        with pytest.raises(errors.DispatchFenceRejected):
            execution.release_before_start(held, *args)
    with pytest.raises(errors.InvalidInput):
        execution.release_before_start(held, "x-1", "not_now", at, at)
    assert action_kit.fresh(dispatch).version == 2
    time.advance(500)
    held = action_kit.claimed(dispatch)
    row = action_kit.fresh(dispatch)
    assert (row.result_mutation_id, row.last_result_code, row.next_attempt_at) == (None, None, None)
    blocked = execution.release_before_start(held, "x-3", "never", clock.now())
    assert blocked.execution.status == "blocked"
    assert execution.release_before_start(held, "x-3", "never", clock.now()).execution == blocked.execution


@pytest.mark.django_db
def test_the_same_end_again(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    snapshot = action_kit.started(dispatch)
    held, at = action_kit.held(snapshot), clock.now()
    with pytest.raises(errors.InvalidInput):
        execution.complete(held, "e-1", "blocked", "done", at)
    with pytest.raises(errors.DispatchFenceRejected):
        execution.complete(held, "e-1", "succeeded", "done", action_kit.later(-1))
    first = execution.complete(held, "e-1", "indeterminate", "unclear", at)
    assert first.execution.status == "blocked" and first.execution.started_at == at
    time.advance(kit.DAY_MS)
    assert execution.complete(held, "e-1", "indeterminate", "unclear", at).execution == first.execution
    for args in (
        ("e-2", "indeterminate", "unclear", at), ("e-1", "failed", "unclear", at), ("e-1", "indeterminate", "x", at),
        ("e-1", "indeterminate", "unclear", clock.now()),
    ):  # fmt: skip
        with pytest.raises(errors.DispatchFenceRejected):
            execution.complete(held, *args)


@pytest.mark.django_db
def test_a_late_end_is_as_good_as_one_in_time(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    snapshot = action_kit.started(dispatch)
    time.advance(kit.DAY_MS)
    done = execution.complete(action_kit.held(snapshot), "e-1", "succeeded", "done", clock.now())
    assert done.execution.status == "succeeded" and action_kit.control(dispatch).status == "resolved"


@pytest.mark.django_db
def test_the_same_finding_again(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    action_kit.started(dispatch)
    time.advance(action_kit.LEASE_MS)
    claimed = store.claim(dispatch.pk, "reconciler", "d" * 64, clock.now())
    again = store.claim(dispatch.pk, "reconciler", "d" * 64, clock.now())
    assert claimed.snapshot is not None and again.snapshot is not None
    assert again.status == "claimed" and again.snapshot.control == claimed.snapshot.control
    assert store.claim(dispatch.pk, "other", "e" * 64, clock.now()).status == "leased"
    held = holding_control(claimed.snapshot.control)
    found = Found("f-1", "missing", "nothing_seen", clock.now(), action_kit.later(5_000))
    first = store.record_finding(held, 2, found)
    assert store.record_finding(held, 2, found).control == first.control and first.control.finding_count == 1
    for changed in ({"mutation_id": "f-2"}, {"result_code": "other"}, {"finding": "still_running"}):
        with pytest.raises(errors.RecoveryFenceRejected):
            store.record_finding(held, 2, replace(found, **changed))
    assert store.claim(dispatch.pk, "other", "e" * 64, clock.now()).status == "not_due"
    for wrong in (
        {"retry_at": None}, {"retry_at": clock.now()}, {"finding": "conflict"}, {"finding": "verified_failed"},
        {"finding": "happened"},
    ):  # fmt: skip
        with pytest.raises(errors.InvalidInput):
            replace(found, **wrong)


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_keeps_the_lease(seeded: None) -> None:
    """Waits for renewals, not for time."""
    c = kit.cast()
    seen: list[int] = []

    def work(snapshot: Any) -> None:
        for _ in range(600):
            version = action_kit.fresh(snapshot.dispatch).version
            seen.append(version)
            if version >= 4:
                return
            threading.Event().wait(0.05)

    effect = Effect(during=work)
    with action_type(effect):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        report = action_kit.dispatch_all(lease_ms=600)
    assert report.succeeded == 1 and seen[0] == 2 and seen[-1] >= 4
    row, control = action_kit.fresh(dispatch), action_kit.control(dispatch)
    assert (row.status, control.status, control.execution_version) == ("succeeded", "resolved", row.version)


@pytest.mark.django_db
def test_a_heartbeat_ends_where_somebody_else_closed_it(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    snapshot = action_kit.started(dispatch)
    asked: list[int] = []
    answers: list[Any] = [errors.DispatchRepositoryError(), snapshot, errors.DispatchFenceRejected()]

    def renew(*_args: Any) -> Any:
        asked.append(1)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(heartbeat.execution, "renew", renew)
    monkeypatch.setattr(heartbeat, "connection", SimpleNamespace(close=lambda: None))
    beat = heartbeat.Heartbeat(action_kit.held(snapshot), 3)
    with beat:
        beat._thread.join(30)
        assert not beat._thread.is_alive()
    assert len(asked) == 3, "a fault is tried again, a refusal is not"


@pytest.mark.django_db
def test_pages_of_a_cycle(time: Time) -> None:
    c = kit.cast()
    effect = Effect()
    with action_type(effect, Witness(NOTHING)):
        for number in range(7):
            action_kit.handed_over_elsewhere(c, f"r-{number}", action_type=OTHER)
            time.advance(1)
        cycle = Cycle(Profile(2, Bounds(1, 2), Bounds(2, 2)))
        first = cycle.run()
        assert (first["dispatch"]["succeeded"], first["dispatch"]["stop"]) == (4, "page_limit")
        assert first["recovery"]["stop"] == "complete" and cycle.dispatching.position is not None
        second = cycle.run()
        assert (second["dispatch"]["succeeded"], second["dispatch"]["stop"]) == (3, "complete")
        assert cycle.dispatching.position is None and effect.executed == 7
    assert set(second["dispatch"]) >= {"scanned", "claimed", "started", "took_ms"}


@pytest.mark.django_db
def test_a_cycle_that_fails_goes_on_where_the_last_good_one_was(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = kit.cast()
    with action_type(Effect(), Witness(NOTHING)):
        made = [action_kit.handed_over_elsewhere(c, f"r-{n}", action_type=OTHER) for n in range(6)]
        for one in made:
            action_kit.started(one)
        time.advance(action_kit.LEASE_MS)
        cycle = Cycle(Profile(2, Bounds(1, 2), Bounds(1, 2)))

        def fail(*_args: Any) -> Any:
            raise RuntimeError

        before = cycle.dispatching.page
        cycle.dispatching.page = fail
        with pytest.raises(RuntimeError):
            cycle.run()
        assert cycle.recovering.position is None
        cycle.dispatching.page = before
        assert cycle.run()["recovery"]["scanned"] == 2 and cycle.recovering.position is not None


def test_a_cursor_that_stands_still() -> None:
    stuck = dispatching.Report(scanned=1, truncated=True, next_cursor=None)
    report, position = Phase(lambda *_: stuck, Bounds(), "tests").run()
    assert (report["stop"], position, report["scanned"]) == ("cursor_stalled", None, 1)
    at = (clock.now(), "x")
    same = dispatching.Report(scanned=1, truncated=True, next_cursor=at)
    report, position = Phase(lambda *_: same, Bounds(), "tests").run()
    assert (report["stop"], report["scanned"]) == ("cursor_stalled", 2)
    for wrong in ((0, 1), (65, 1), (1, 0), (1, 65)):
        with pytest.raises(ValueError, match="1 to 64"):
            Bounds(*wrong)
    for interval in (0.2, 86_401):
        with pytest.raises(ValueError, match="250 ms"):
            Profile(interval, Bounds(), Bounds())


@pytest.mark.django_db
def test_damaged_rows(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    snapshot = action_kit.started(dispatch)
    held = holding(snapshot.execution)
    with thawed("approved_action_executions"):
        ApprovedActionExecution.objects.update(created_at=clock.from_ms(time.ms - 5))
    with pytest.raises(errors.DispatchBindingConflict):
        execution.complete(held, "e-1", "succeeded", "done", clock.now())
    with pytest.raises(errors.RecoveryBindingConflict):
        snapshots.find(dispatch.pk)
    with thawed("approved_action_executions"):
        ApprovedActionExecution.objects.update(created_at=dispatch.created_at)
    with thawed("approved_action_recovery_controls"):
        ApprovedActionRecoveryControl.objects.update(execution_version=7)
    with pytest.raises(errors.RecoveryBindingConflict):
        snapshots.find(dispatch.pk)
    with pytest.raises(errors.DispatchFenceRejected):
        execution.complete(held, "e-1", "succeeded", "done", clock.now())
    with thawed("approved_action_recovery_controls"):
        ApprovedActionRecoveryControl.objects.all().delete()
    with pytest.raises(errors.RecoveryRepositoryError):
        snapshots.find(dispatch.pk)
    for call in (
        lambda: execution.complete(held, "e-1", "succeeded", "done", clock.now()),
        lambda: execution.renew(held, clock.now()),
    ):
        with pytest.raises(errors.DispatchRepositoryError):
            call()
    assert action_kit.fresh(dispatch).version == 2
    with thawed("approved_action_executions"):
        ApprovedActionExecution.objects.all().delete()
    with pytest.raises(errors.DispatchRepositoryError):
        execution.claim(dispatch.pk, "w", "t", clock.now())
    assert execution.claim("none", "w", "t", clock.now()).status == "not_found"
    assert ApprovedActionDispatch.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong", [{"owner": "a b"}, {"token": "t\n"}, {"ms": 0}, {"ms": 600_001}, {"id": "a b"}, {"ms": True}]
)
def test_what_a_claim_may_be(time: Time, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"id": "x", "owner": "o", "token": "t", "ms": 1, **wrong}
    args = (given["id"], given["owner"], given["token"], clock.now(), given["ms"])
    for call in (execution.claim, store.claim):
        with pytest.raises(errors.InvalidInput):
            call(*args)


@pytest.mark.django_db
def test_whether_anything_is_due_is_one_question(time: Time) -> None:
    c = kit.cast()

    def due_now() -> bool:
        with CaptureQueriesContext(connection) as asked:
            found = due.anything(clock.now())
        assert len(asked) == 1
        now = clock.now()
        assert found == bool(due.executions(now, 1).dispatch_ids or due.controls(now, 1).dispatch_ids)
        return found

    assert not due_now()
    with action_type(Effect(), Witness(NOTHING)):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        assert due_now()
        held = action_kit.claimed(dispatch)
        assert not due_now()
        execution.release_before_start(held, "x-1", "not_now", clock.now(), action_kit.later(5))
        assert not due_now()
        time.advance(5)
        assert due_now()
        snapshot = action_kit.started(dispatch)
        assert not due_now()
        time.advance(action_kit.LEASE_MS)
        assert due_now()
        action_kit.recover_all()
        assert not due_now()
        time.advance(5_000)
        assert due_now()
        renewed = execution.renew(action_kit.held(snapshot), clock.now())
        assert not due_now()
        time.advance(action_kit.LEASE_MS)
        assert due_now()
        execution.complete(action_kit.held(renewed), "e-1", "succeeded", "done", clock.now())
        assert not due_now()
