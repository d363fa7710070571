"""spec/runs.md §19, scenarios 15 to 23: stops asked for, claimed, delivered, tried again, blocked; tokens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from apps.core import clock, ids
from apps.dispatch import cancellations, jobs
from apps.dispatch.errors import (
    CancellationCommandInvalid,
    CancellationFenceRejected,
)
from apps.dispatch.models import RunCancellationDispatch
from apps.dispatch.services import cancellation
from apps.dispatch.services.cancellation import Claim, Told, Wanted
from apps.runs import services
from apps.runs.errors import RunNotFound
from apps.runs.models import Run, RunAttempt, RunEvent, UncountedRun
from tests.runs import kit

OWNER, OTHER = f"{kit.NODE}:1", f"{kit.NODE}:2"
TOKEN = "t" * 43


def running(**task: Any) -> Run:
    """A run whose attempt runs and which is to be stopped."""
    run = kit.run_of(kit.task(**task))
    fence = kit.worker()
    kit.advance(fence, kit.claimed(fence, run))
    services.request_cancel(kit.grant("run.stop"), run.pk)
    return kit.fresh(run)


def wanted(run: Run, **changes: Any) -> Wanted:
    assert run.cancel_requested_at is not None
    values = {"attempt_id": kit.attempt_of(run).pk, "requested_at": run.cancel_requested_at, **changes}
    return Wanted(run.pk, **values)


def claim(run: Run, owner: str = OWNER, token: str = TOKEN, **changes: Any) -> Claim:
    lease = {"lease_ms": changes.pop("lease_ms")} if "lease_ms" in changes else {}
    return cancellation.claim(owner, [wanted(run, **changes)], token=token, **lease)[run.pk]


def record(
    run: Run,
    result: str,
    version: int = 1,
    delay: int | None = None,
    *,
    owner: str = OWNER,
    token: str = TOKEN,
) -> cancellations.Record:
    told = Told(run.pk, kit.attempt_of(run).pk, version, result, delay)
    return cancellation.record(owner, token, [told])[run.pk]


def results(run: Run) -> list[RunEvent]:
    return list(RunEvent.objects.filter(run=run, type__startswith="run.cancel_dispatch").order_by("sequence"))


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["created", "queued", "waiting_approval", "lost"])
def test_runs_15_what_nobody_carries_ends_with_the_request(time: Any, status: str) -> None:
    run = kit.run_of(kit.task())
    attempt = "lost" if status == "lost" else "claimed"
    Run.objects.filter(pk=run.pk).update(status=status, holds_place=status == "queued")
    RunAttempt.objects.filter(run=run).update(status=attempt)
    result = services.request_cancel(kit.grant("run.stop"), run.pk, note="not needed")
    assert (result.outcome, result.run.status) == ("accepted", "cancelled")
    found = kit.fresh(run)
    assert (found.status, found.cancel_reason, found.cancel_requested_at) == (
        "cancelled",
        "user",
        clock.now(),
    )
    assert (found.finished_at, found.error_code) == (clock.now(), "EXECUTION_CANCELLED")
    ends = ["run.cancelled"] if status == "lost" else ["attempt.cancelled", "run.cancelled"]
    assert kit.events(run)[-1 - len(ends) :] == ["run.cancel_requested", *ends]
    # There is no process, so that nothing is to be delivered.
    assert cancellations.pending([run.pk]).candidates == () and cancellations.find(run.pk) is None
    assert services.request_cancel(kit.grant("run.stop"), run.pk).outcome == "already_terminal"
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_15_a_claim_that_nobody_holds_ends_with_the_broom(time: Any) -> None:
    run = kit.run_of(kit.task())
    lease = kit.claimed(kit.worker(), run)
    assert services.request_cancel(kit.grant("run.stop"), run.pk).outcome == "accepted"
    assert kit.fresh(run).status == "dispatching"
    kit.expire_now(lease)
    jobs.expire_leases({})
    assert (kit.fresh(run).status, kit.attempt_of(run).status) == ("cancelled", "cancelled")
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_15_unknown_runs(time: Any) -> None:
    for unknown in (ids.uuid7(), kit.attempt_of(kit.run_of(kit.task())).pk):
        with pytest.raises(RunNotFound):
            services.request_cancel(kit.grant("run.stop"), unknown)


@pytest.mark.django_db
def test_runs_16_claim_flow(time: Any) -> None:
    run = running()
    now = clock.now()
    first = claim(run, lease_ms=30_000)
    assert (first.outcome, first.token) == ("claimed", TOKEN)
    assert first.record is not None
    assert (first.record.version, first.record.dispatch_count) == (1, 1)
    assert first.record.lease_expires_at == now + timedelta(seconds=30)
    version = kit.fresh(run).version
    time.advance(29_999)
    assert claim(run, OTHER, "u" * 43).outcome == "leased"
    time.advance(1)
    second = claim(run, OTHER, "u" * 43)
    assert second.outcome == "claimed" and second.record is not None
    assert (second.record.version, second.record.dispatch_count) == (2, 2)
    with pytest.raises(CancellationFenceRejected):
        record(run, "termination_requested")
    with pytest.raises(CancellationFenceRejected):
        record(run, "termination_requested", 2)
    with pytest.raises(CancellationFenceRejected):
        record(run, "termination_requested", 2, owner=OTHER)
    # A claim writes no event and leaves the run as it is.
    assert not results(run) and kit.fresh(run).version == version
    done = record(run, "termination_requested", 2, owner=OTHER, token="u" * 43)
    assert (done.status, done.version, done.dispatch_count) == ("dispatched", 3, 2)
    with pytest.raises(CancellationFenceRejected):
        record(run, "termination_requested", 2, owner=OTHER, token="u" * 43)
    assert claim(run).outcome == "dispatched"
    assert kit.fresh(run).status == "running"
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_16_bounds_of_a_claim(time: Any) -> None:
    run = running()
    for bad in ({"owner": ""}, {"owner": "o" * 129}, {"token": ""}, {"token": "t" * 129}):
        with pytest.raises(CancellationCommandInvalid):
            claim(run, **bad)
    for lease_ms in (0, 300_001):
        with pytest.raises(CancellationCommandInvalid):
            claim(run, lease_ms=lease_ms)
    assert not RunCancellationDispatch.objects.exists()
    assert claim(run, lease_ms=300_000).outcome == "claimed"


def test_runs_16_two_claim_at_once(seeded: None) -> None:
    run = running()
    calls: list[Callable[[], Any]] = [
        lambda n=n: claim(run, f"{kit.NODE}:{n}", str(n) * 43) for n in range(1, 6)
    ]
    outcomes = sorted(getattr(found, "outcome", found) for found in kit.race(calls))
    assert outcomes == ["claimed", *["leased"] * 4]
    row = RunCancellationDispatch.objects.get(pk=run.pk)
    assert (row.version, row.dispatch_count) == (1, 1)


@pytest.mark.django_db
def test_runs_17_late_but_unclaimed_result(time: Any) -> None:
    run = running()
    claim(run)
    time.advance(cancellation.LEASE_MS + 5_000)
    done = record(run, "already_exited")
    assert (done.status, done.last_result, done.last_dispatched_at) == (
        "dispatched",
        "already_exited",
        clock.now(),
    )
    (event,) = results(run)
    assert event.type == "run.cancel_dispatched" and (event.actor_type, event.actor_id) == ("worker", OWNER)
    assert event.payload["result"] == "already_exited" and event.payload["dispatch_count"] == 1


@pytest.mark.django_db
def test_runs_17_a_result_after_the_end_of_the_run(time: Any) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    services.request_cancel(kit.grant("run.stop"), run.pk)
    run = kit.fresh(run)
    claim(run)
    kit.finish(fence, lease, 143)
    counted = UncountedRun.objects.count()
    record(run, "termination_requested")
    assert kit.events(run)[-1] == "run.cancel_dispatched" and kit.fresh(run).status == "cancelled"
    # The end was told and counted once.
    assert UncountedRun.objects.count() == counted
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_18_stale_request(time: Any) -> None:
    run = running()
    assert run.cancel_requested_at is not None
    early = run.cancel_requested_at - timedelta(milliseconds=1)
    assert claim(run, requested_at=early) == Claim("not_eligible")
    assert claim(run, attempt_id=ids.uuid7()) == Claim("not_eligible")
    other = running(name="other")
    assert claim(run, attempt_id=kit.attempt_of(other).pk) == Claim("not_eligible")
    assert not RunCancellationDispatch.objects.exists()


@pytest.mark.django_db
def test_runs_18_only_a_session_of_the_attempts_node(time: Any) -> None:
    run = running()
    assert claim(run, f"{'b' * 32}:1") == Claim("not_eligible")
    assert not RunCancellationDispatch.objects.exists()
    assert claim(run, OTHER).outcome == "claimed"


@pytest.mark.django_db
def test_runs_18_ended_runs_and_attempts(time: Any) -> None:
    run = running()
    RunAttempt.objects.filter(run=run).update(status="cancelled")
    assert claim(run).outcome == "not_eligible"
    other = running(name="other")
    Run.objects.filter(pk=other.pk).update(status="cancelled")
    assert claim(other).outcome == "not_eligible"
