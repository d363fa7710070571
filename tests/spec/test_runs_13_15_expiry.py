"""runs.md, scenarios 13 to 15: leases that run out, and requests to stop."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core import clock
from apps.dispatch import queries
from apps.dispatch.errors import ExpiryTargetInconsistent
from apps.dispatch.models import RunDispatchLease, Worker
from apps.dispatch.services import expiry, nodes, workers
from apps.runs import services
from apps.runs.models import Run, RunEvent
from tests.runs import kit


@pytest.mark.django_db
def test_runs_13_crash_after_claim(time: Any) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    workers.heartbeat(fence, 7, [], kit.TTL_MS)
    (found,) = queries.recoverable(clock.now())
    assert found.lease == lease and found.lease.token == lease.token
    assert found.lease.offer_id() == lease.offer_id()
    assert lease.token not in repr(found)
    time.ms = clock.to_ms(lease.expires_at) - 1
    assert len(queries.recoverable(clock.now())) == 1
    assert queries.recoverable(clock.now(), after=(lease.expires_at, lease.attempt_id)) == []
    Worker.objects.filter(pk=fence.worker_id).update(lease_expires_at=clock.now())
    assert queries.recoverable(clock.now()) == []
    kit.worker()
    assert queries.recoverable(clock.now()) == []


@pytest.mark.django_db
def test_runs_13_started_or_stopped_claims_are_not_listed(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=8)
    fence = kit.worker()
    started, stopped = kit.run_of(task), kit.run_of(task)
    kit.advance(fence, kit.claimed(fence, started))
    kit.claimed(fence, stopped)
    services.request_cancel(kit.grant("run.stop"), stopped.pk)
    assert queries.recoverable(clock.now()) == []


def silent(time: Any) -> None:
    """Nobody of the node has shown itself for two minutes."""
    time.advance(int(nodes.LOST_AFTER.total_seconds() * 1000))


@pytest.mark.django_db
def test_runs_14_lease_expiry_while_running(time: Any) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    version = kit.fresh(run).version
    time.ms = clock.to_ms(lease.expires_at)
    assert expiry.expire(lease.attempt_id) == "node_up"
    assert kit.fresh(run).status == "running"
    time.ms += 100_000 - 1
    assert expiry.expire(lease.attempt_id) == "node_up"
    time.advance(1)
    assert expiry.expire(lease.attempt_id) == "lost"
    assert expiry.expire(lease.attempt_id) == "already_expired"
    lost, attempt = kit.fresh(run), kit.attempt_of(run)
    assert (lost.status, attempt.status) == ("lost", "lost")
    assert lost.error_code == attempt.error_code == "REMOTE_RUN_LEASE_EXPIRED"
    assert lost.version == version + 2 and not lost.holds_place and lost.finished_at is None
    assert kit.events(run)[-2:] == ["attempt.lost", "run.lost"]
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_14_with_a_cancellation_only_the_lease_is_released(time: Any) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    services.request_cancel(kit.grant("run.stop"), run.pk)
    version = kit.fresh(run).version
    silent(time)
    assert expiry.expire(lease.attempt_id) == "cancellation_pending"
    assert (kit.fresh(run).status, kit.attempt_of(run).status) == ("running", "running")
    assert kit.fresh(run).version == version
    # And it does not hang there for ever: nobody can stop it any more, so it is over (§10.2 rule 1).
    assert expiry.end_unheld() == 1
    ended = kit.fresh(run)
    assert (ended.status, kit.attempt_of(run).status) == ("cancelled", "lost")
    assert ended.error_code == "RUN_CANCELLED_DURING_LOST_RECOVERY" and not ended.holds_place
    kit.check_history(run)
    assert expiry.end_unheld() == 0


@pytest.mark.django_db
def test_runs_14_a_cancelled_claim_that_expired_ends(time: Any) -> None:
    run = kit.run_of(kit.task())
    lease = kit.claimed(kit.worker(), run)
    services.request_cancel(kit.grant("run.stop"), run.pk)
    assert expiry.end_unheld() == 0
    time.ms = clock.to_ms(lease.expires_at)
    assert expiry.expire(lease.attempt_id) == "cancellation_pending"
    assert expiry.end_unheld() == 1
    assert (kit.fresh(run).status, kit.attempt_of(run).status) == ("cancelled", "cancelled")
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_14_terminal_runs_and_foreign_workers(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=8)
    fence = kit.worker()
    first, second = kit.run_of(task), kit.run_of(task)
    ended, foreign = kit.claimed(fence, first), kit.claimed(fence, second)
    for lease in (ended, foreign):
        kit.advance(fence, lease)
    Run.objects.filter(pk=first.pk).update(status="failed")
    kit.attempt_of(second)
    type(kit.attempt_of(second)).objects.filter(run=second).update(worker_id="elsewhere:1")
    silent(time)
    assert expiry.expire(ended.attempt_id) == "terminal_released"
    with pytest.raises(ExpiryTargetInconsistent):
        expiry.expire(foreign.attempt_id)
    assert RunDispatchLease.objects.get(pk=foreign.attempt_id).status == "leased"


@pytest.mark.django_db
def test_runs_14_leases_that_cannot_be_decided_do_not_starve_the_others(time: Any) -> None:
    """Leases of a node that is up, or broken ones, stand first in the list; the others get their turn."""
    from apps.dispatch import jobs
    from apps.runs.models import RunAttempt

    task = kit.task(concurrency="parallel", max_parallel=64)
    up = kit.worker(1, slots=64)
    held = [kit.claimed(up, kit.run_of(task)) for _ in range(expiry.PAGE + 2)]
    for lease in held:
        kit.advance(up, lease)
    RunAttempt.objects.filter(pk=held[0].attempt_id).update(worker_id="elsewhere:1")
    other = kit.worker(1, node="b" * 32)
    run = kit.run_of(task)
    lease = kit.claimed(other, run)
    kit.advance(other, lease)
    time.advance(kit.TTL_MS)
    RunDispatchLease.objects.filter(pk=lease.attempt_id).update(expires_at=clock.now())
    silent(time)
    workers.register(kit.NODE, 2, 8, ["runs"])
    jobs.expire_leases({})
    assert kit.fresh(run).status == "lost"


@pytest.mark.django_db
def test_runs_15_cancel_request(time: Any) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    stop = kit.grant("run.stop")
    first = services.request_cancel(stop, run.pk, reason="user", note="too slow")
    requested = kit.fresh(run).cancel_requested_at
    time.advance(1000)
    second = services.request_cancel(stop, run.pk, reason="policy")
    assert (first.outcome, second.outcome) == ("accepted", "already_requested")
    found = kit.fresh(run)
    assert (found.cancel_requested_at, found.cancel_reason, found.status) == (requested, "user", "running")
    told = RunEvent.objects.get(run=run, type="run.cancel_requested")
    assert told.payload["note"] == "too slow" and told.payload["reason"] == "user"
    kit.finish(fence, lease, 0)
    assert kit.fresh(run).status == "cancelled"
    assert services.request_cancel(stop, run.pk).outcome == "already_terminal"
    kit.check_history(run)


def test_runs_15_many_ask_at_once(seeded: None) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    stop = kit.grant("run.stop")
    results = kit.race([lambda: services.request_cancel(stop, run.pk)] * 6)
    outcomes = [getattr(result, "outcome", result) for result in results]
    assert sorted(outcomes) == ["accepted", *["already_requested"] * 5]
    assert kit.events(run).count("run.cancel_requested") == 1
    kit.check_history(run)


@pytest.mark.django_db
@pytest.mark.parametrize("stopped", [False, True])
def test_runs_14_a_lost_run_gives_its_place_on(time: Any, stopped: bool) -> None:
    task = kit.task(concurrency="queue")
    run, waiting = kit.run_of(task), kit.run_of(task)
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    if stopped:
        services.request_cancel(kit.grant("run.stop"), run.pk)
    silent(time)
    expiry.expire(lease.attempt_id)
    assert kit.fresh(waiting).holds_place is not stopped
    expiry.end_unheld()
    assert kit.fresh(waiting).holds_place and kit.holders(task) == 1
