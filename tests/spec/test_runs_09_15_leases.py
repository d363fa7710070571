"""spec/runs.md §19, scenarios 9 to 15: claims, capacity, fences, expiry, the wish to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from apps.core import clock, ids
from apps.dispatch import leases
from apps.dispatch.errors import LeaseDurationInvalid, LeaseFenceRejected
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.models import RunDispatchLease
from apps.dispatch.services import draining, expiry, passes, workers
from apps.dispatch.services.passes import News, SessionReplaced
from apps.runs.models import RunEvent
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
def test_runs_11_a_clock_that_was_set_back_renews_all_the_same(time: Any) -> None:
    fence = kit.worker()
    lease = kit.claimed(fence, kit.run_of(kit.task()))
    time.advance(-10)
    found = workers.heartbeat(fence, 7, [lease], kit.TTL_MS)
    assert found is not None and set(found.kept) == {lease.attempt_id}
    assert found.kept[lease.attempt_id].expires_at == lease.expires_at
