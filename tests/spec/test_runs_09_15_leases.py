"""spec/runs.md §19, scenarios 9 to 15: claims, capacity, fences, expiry, the wish to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from apps.core import clock, ids
from apps.dispatch import leases, queries
from apps.dispatch.errors import ExpiryTargetInconsistent, LeaseDurationInvalid, LeaseFenceRejected
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.models import RunDispatchLease, Worker
from apps.dispatch.services import draining, expiry, nodes, passes, workers
from apps.dispatch.services.passes import News, SessionReplaced
from apps.runs import services
from apps.runs.models import Run, RunEvent
from tests.runs import kit


def reason(fence: LeaseFence, **options: Any) -> str:
    with pytest.raises(LeaseFenceRejected) as refused, transaction.atomic():
        leases.check(fence, clock.now(), **options)
    return refused.value.reason


def test_runs_09_two_workers_claim(seeded: None) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    fences = [kit.worker(slot) for slot in (1, 2)]
    for _round in range(8):
        run = kit.run_of(task)
        outcomes = kit.race([lambda f=fence, r=run: kit.claim(f, r) for fence in fences])
        results = [getattr(outcome, "result", outcome) for outcome in outcomes]
        # Whoever reads after the other's commit is refused by the run's new version or by its lease.
        assert results.count("claimed") == 1, results
        assert kit.events(run).count("run.dispatching") == 1
        assert RunDispatchLease.objects.filter(run=run, status="leased").count() == 1
        kit.check_history(run)


def test_runs_09_sessions_never_take_one_run_twice(seeded: None) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    runs = {kit.run_of(task).pk for _ in range(40)}
    fences = [kit.worker(slot, slots=64) for slot in (1, 2, 3, 4)]

    def drain(fence: WorkerFence) -> Any:
        def call() -> list[Any]:
            found = []
            while batch := kit.take(fence, 3):
                found += [claimed.run.pk for claimed in batch]
            return found

        return call

    taken = kit.race([drain(fence) for fence in fences])
    everything = [pk for batch in taken for pk in batch]
    assert len(everything) == len(set(everything))
    left = runs - set(everything)
    # What one session held locked while another looked is taken with the next look.
    assert {claimed.run.pk for claimed in kit.take(fences[0], 64)} == left
    for run in runs:
        assert kit.events(run).count("run.dispatching") == 1
        kit.check_history(run)


@pytest.mark.django_db
def test_runs_09_the_winner_repeats_with_its_token(time: Any) -> None:
    run = kit.run_of(kit.task())
    mine, other = kit.worker(1), kit.worker(2)
    token = ids.token()
    first = kit.claim(mine, run, token=token)
    events = RunEvent.objects.count()
    again = kit.claim(mine, run, token=token)
    assert (first.result, again.result) == ("claimed", "idempotent")
    assert again.fence == first.fence and again.change is None
    assert kit.claim(mine, run, token=ids.token()).result == "leased"
    assert kit.claim(mine, run).result == "leased"
    assert kit.claim(other, run, token=token).result == "leased"
    assert RunEvent.objects.count() == events
    assert token not in repr(first)


@pytest.mark.django_db
def test_runs_10_capacity(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    fence = kit.worker(1, slots=2)
    held = [kit.claimed(fence, kit.run_of(task)) for _ in range(2)]
    third = kit.run_of(task)
    assert kit.claim(fence, third).result == "capacity_exhausted"
    assert kit.events(third)[-1] == "run.queued"
    workers.heartbeat(fence, 1, [], kit.TTL_MS)
    kit.expire_now(held[0])
    assert kit.claim(fence, third).result == "claimed"


@pytest.mark.django_db
def test_runs_10_a_pass_that_ends_runs_fills_their_slots_at_once(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    fence = kit.worker(1, slots=2)
    for _ in range(4):
        kit.run_of(task)
    held = [claimed.lease for claimed in kit.take(fence, 2)]
    for lease in held:
        kit.advance(fence, lease)
    receipts = [_receipt(lease) for lease in held]
    ended = [passes.Ended(lease, end) for lease, end in zip(held, receipts, strict=True)]
    stored = passes.store(fence, News(ended=ended, room=2, slots=2), kit.TTL_MS)
    assert len(stored.claimed) == 2


def _receipt(lease: LeaseFence) -> Any:
    from apps.dispatch.receipts import Receipt
    from apps.dispatch.services.completion import End

    at = clock.now_ms()
    return End(Receipt(str(lease.run_id), str(lease.attempt_id), 1, kit.TOKEN, at, at, 0))


@pytest.mark.django_db
def test_runs_10_draining_may_only_replay(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    fence, token = kit.worker(), ids.token()
    held = kit.run_of(task)
    lease = kit.claimed(fence, held, token=token)
    draining.set_node(True, kit.NODE, actor=("user", "u"), origin="tests")
    assert kit.claim(fence, kit.run_of(task)).result == "worker_unavailable"
    assert kit.claim(fence, held, token=token).result == "idempotent"
    assert kit.take(fence, 4) == []
    found = workers.heartbeat(fence, 7, [lease], kit.TTL_MS)
    assert found is not None and found.held_back and set(found.kept) == {lease.attempt_id}


@pytest.mark.django_db
def test_runs_10_unavailable_workers(time: Any) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    for stale in (
        replace(fence, generation=fence.generation + 1),
        replace(fence, session_id=str(ids.uuid7())),
        WorkerFence("nobody:1", fence.session_id, 1),
    ):
        assert kit.claim(stale, run).result == "worker_unavailable"
    time.advance(workers.WORKER_TTL_MS)
    assert kit.claim(fence, run).result == "worker_unavailable"
    workers.leave(kit.worker())
    assert kit.claim(kit.worker(2), run).result == "claimed"
    for wrong in (4_999, 600_001, 0, -1):
        with pytest.raises(LeaseDurationInvalid):
            leases.duration(wrong)


@pytest.mark.django_db
def test_runs_11_fencing(time: Any) -> None:
    run = kit.run_of(kit.task())
    old = kit.worker()
    lease = kit.claimed(old, run)
    before = RunDispatchLease.objects.values().get(pk=lease.attempt_id)
    assert reason(replace(lease, run_id=ids.uuid7())) == "run_mismatch"
    assert reason(replace(lease, attempt_id=ids.uuid7())) == "missing"
    assert reason(replace(lease, worker=replace(old, worker_id="x:1"))) == "worker_mismatch"
    assert reason(replace(lease, lease_generation=2)) == "lease_generation_mismatch"
    assert reason(replace(lease, token="x" * 43)) == "lease_token_mismatch"
    assert reason(replace(lease, version=lease.version + 1)) == "version_mismatch"
    time.ms = clock.to_ms(lease.expires_at) - 1
    workers.heartbeat(old, 7, [], kit.TTL_MS)
    with transaction.atomic():
        assert leases.check(lease, clock.now()).pk == lease.attempt_id
    time.advance(1)
    assert reason(lease) == "lease_expired"
    time.advance(-1)

    new = kit.worker()
    assert new.generation == old.generation + 1
    assert reason(lease) == "worker_unavailable"
    assert RunDispatchLease.objects.values().get(pk=lease.attempt_id) == before

    kit.expire_now(lease)
    replaced = kit.claimed(new, run)
    assert reason(lease) == "worker_session_mismatch"
    held = RunDispatchLease.objects.values().get(pk=lease.attempt_id)
    with transaction.atomic():
        now = clock.now()
        assert not leases.renew([lease], kit.TTL_MS, now)
        assert not leases.release([lease], "shutdown", now)
        assert not leases.complete([lease], now)
        assert not leases.unreplaced([lease])
    assert RunDispatchLease.objects.values().get(pk=lease.attempt_id) == held
    assert replaced.lease_generation == 2


@pytest.mark.django_db
def test_runs_11_a_replaced_session_stores_nothing(time: Any) -> None:
    run = kit.run_of(kit.task())
    old = kit.worker()
    lease = kit.claimed(old, run)
    kit.worker()
    assert workers.heartbeat(old, 8, [lease], kit.TTL_MS) is None
    with pytest.raises(SessionReplaced):
        kit.advance(old, lease)
    with pytest.raises(SessionReplaced):
        kit.take(old, 1)
    assert kit.attempt_of(run).status == "claimed"


@pytest.mark.django_db
def test_runs_11_renew_refuses_expired_and_old_versions(time: Any) -> None:
    lease = kit.claimed(kit.worker(), kit.run_of(kit.task()))
    time.advance(10)
    with transaction.atomic():
        kept = leases.renew([lease], kit.TTL_MS, clock.now())
        assert not leases.renew([lease], kit.TTL_MS, clock.now())
    fresh = kept[lease.attempt_id]
    assert (fresh.version, fresh.lease_generation, fresh.token) == (
        lease.version + 1, lease.lease_generation, lease.token,
    )  # fmt: skip
    time.ms = clock.to_ms(fresh.expires_at)
    with transaction.atomic():
        assert not leases.renew([fresh], kit.TTL_MS, clock.now())
    time.advance(-1)
    with transaction.atomic():
        assert leases.renew([fresh], kit.TTL_MS, clock.now())


@pytest.mark.django_db
def test_runs_12_reclaim(time: Any) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    first = kit.claimed(fence, run)
    time.ms = clock.to_ms(first.expires_at) - 1
    assert expiry.expire(first.attempt_id) == "not_due"
    time.advance(1)
    assert expiry.expire(first.attempt_id) == "unstarted_released"
    assert expiry.expire(first.attempt_id) == "already_expired"
    assert expiry.expire(ids.uuid7()) == "not_found"
    assert (kit.fresh(run).status, kit.attempt_of(run).status) == ("dispatching", "claimed")
    lease = RunDispatchLease.objects.get(pk=first.attempt_id)
    assert (lease.status, lease.release_reason) == ("released", "lease_expired")
    second = kit.claimed(kit.worker(), run)
    assert second.lease_generation == 2 and second.token != first.token
    assert second.offer_id() != first.offer_id() and len(second.offer_id()) == 64
    told = RunEvent.objects.filter(run=run).order_by("-sequence")[0]
    assert told.type == "run.dispatch_reclaimed"
    assert (told.payload["previous_state"], told.payload["lease_generation"]) == ("released", 2)
    assert kit.events(run).count("run.dispatching") == 1
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_12_reclaim_of_an_expired_lease_that_nobody_released(time: Any) -> None:
    run = kit.run_of(kit.task())
    first = kit.claimed(kit.worker(1), run)
    time.ms = clock.to_ms(first.expires_at)
    other = kit.worker(2)
    assert [claimed.run.pk for claimed in kit.take(other, 4)] == [run.pk]
    told = RunEvent.objects.filter(run=run).order_by("-sequence")[0]
    assert (told.type, told.payload["previous_state"]) == ("run.dispatch_reclaimed", "expired")
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_12_a_clock_that_runs_behind_ends_no_session(time: Any) -> None:
    """Two machines never agree to the millisecond: a run from the near future is carried, not an error."""
    run = kit.run_of(kit.task())
    time.advance(-50)
    fence = kit.worker()
    (claimed,) = kit.take(fence, 4)
    assert claimed.run.pk == run.pk
    kit.advance(fence, claimed.lease)
    kit.finish(fence, claimed.lease)
    ended = kit.fresh(run)
    assert ended.status == "succeeded" and ended.finished_at >= ended.created_at
    kit.check_history(run)


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
def test_runs_11_a_clock_that_was_set_back_renews_all_the_same(time: Any) -> None:
    fence = kit.worker()
    lease = kit.claimed(fence, kit.run_of(kit.task()))
    time.advance(-10)
    found = workers.heartbeat(fence, 7, [lease], kit.TTL_MS)
    assert found is not None and set(found.kept) == {lease.attempt_id}
    assert found.kept[lease.attempt_id].expires_at == lease.expires_at


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
