"""Whatever happens in whatever order, the records keep their rules."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core import clock
from apps.core.errors import DomainError, VersionConflict
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.models import CompletionReceiptJournal, RunDispatchLease
from apps.dispatch.services import adoption, expiry, passes, workers
from apps.dispatch.services import draining as draining_services
from apps.dispatch.services.passes import News, SessionReplaced
from apps.runs import services
from apps.runs.errors import TaskDisabled
from apps.runs.models import ENDED, Run, RunAttempt, RunEvent
from apps.runs.services import places
from apps.tasks.models import Task
from apps.triggers import services as triggers
from tests.runs import kit

START_MS = 1_790_000_000_000
TASKS = (
    {"concurrency": "queue"},
    {"concurrency": "parallel", "max_parallel": 2},
    {"concurrency": "replace"},
    {"concurrency": "skip"},
)
WORKERS = 3  # two on one node, one on another

small = st.integers(0, 7)
STEPS = st.one_of(
    *[st.tuples(st.just("start"), st.sampled_from([0, 0, 0, 1, 2, 3]), st.integers(-2, 2))] * 6,
    st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("starting"), small, small),
    st.tuples(st.just("running"), small, small),
    st.tuples(st.just("running"), small, small),
    st.tuples(st.just("finish"), small, st.integers(0, 2)),
    st.tuples(st.just("finish"), small, st.integers(0, 2)),
    st.tuples(st.just("fail"), small, st.booleans()),
    st.tuples(st.just("return"), small, small),
    *[st.tuples(st.just("cancel"), small, st.sampled_from(["user", "policy", "timeout"]))] * 2,
    st.tuples(st.just("tick"), st.sampled_from([1, 5_000, 20_000, 120_000]), small),
    st.tuples(st.just("back"), st.integers(1, 50), small),
    st.tuples(st.just("heartbeat"), st.integers(0, 2), small),
    st.tuples(st.just("restart"), st.integers(0, 2), small),
    st.tuples(st.just("adopt"), st.integers(0, 2), small),
    st.tuples(st.just("expire"), small, small),
    st.tuples(st.just("sweep"), small, small),
    st.tuples(st.just("disable"), st.integers(0, 3), small),
    st.tuples(st.just("drain"), st.sampled_from([True, False, False]), small),
    *[st.tuples(st.just("silence"), small, small)] * 2,
)


class World:
    """A few tasks and sessions, and every lease that was ever held: old ones speak up too."""

    def __init__(self) -> None:
        self.ms = START_MS
        self.tasks = [kit.task(f"t{number}", **options) for number, options in enumerate(TASKS)]
        self.fences = [self.register(number) for number in range(WORKERS)]
        self.held: list[tuple[WorkerFence, LeaseFence]] = []
        self.generations: dict[Any, int] = defaultdict(int)
        self.ended: dict[Any, str] = {}

    def register(self, number: int) -> WorkerFence:
        return kit.worker(number % 2 + 1, slots=3, node=("a" if number < 2 else "b") * 32)

    def step(self, name: str, first: Any, second: Any) -> None:
        with suppress(SessionReplaced):
            getattr(self, name)(first, second)

    def start(self, task: int, priority: int) -> None:
        try:
            kit.start(self.tasks[task], priority=priority)
        except TaskDisabled:
            triggers.set_task_enabled(
                kit.grant("task.update"),
                self.tasks[task].pk,
                Task.objects.get(pk=self.tasks[task].pk).version,
                True,
            )

    def take(self, worker: int, room: int) -> None:
        fence = self.fences[worker]
        self.held += [(fence, claimed.lease) for claimed in kit.take(fence, room)]

    def _any(self, index: int) -> tuple[WorkerFence, LeaseFence] | None:
        return self.held[-1 - index % len(self.held)] if self.held else None

    def _at(self, index: int, status: str) -> tuple[WorkerFence, LeaseFence] | None:
        """A lease, current or old, whose attempt is in a state that its session believes it to be in."""
        right = [pair for pair in self.held if RunAttempt.objects.get(pk=pair[1].attempt_id).status == status]
        return right[index % len(right)] if right else None

    def starting(self, index: int, _: int) -> None:
        if pair := self._at(index, "claimed"):
            kit.advance(*pair, to="starting")

    def running(self, index: int, _: int) -> None:
        if pair := self._at(index, "claimed"):
            kit.advance(*pair)

    def finish(self, index: int, code: int) -> None:
        if pair := self._any(index):
            kit.finish(*pair, code, cause="deadline" if code == 2 else None)

    def fail(self, index: int, lost: bool) -> None:
        if pair := self._at(index, "starting" if lost else "claimed"):
            failed = passes.Failed(pair[1], "start_failed", lost)
            passes.store(pair[0], News(failed=[failed], slots=3, room=1), kit.TTL_MS)

    def __getattr__(self, name: str) -> Any:
        if name == "return":
            return self._returned
        raise AttributeError(name)

    def _returned(self, index: int, _: int) -> None:
        if pair := self._at(index, "claimed"):
            passes.store(pair[0], News(returned=[pair[1]], slots=3), kit.TTL_MS)

    def cancel(self, index: int, reason: str) -> None:
        runs = list(Run.objects.order_by("-pk")[:8])
        if runs:
            services.request_cancel(kit.grant("run.stop"), runs[index % len(runs)].pk, reason=reason)

    def tick(self, ms: int, _: int) -> None:
        self.ms += ms

    def back(self, ms: int, _: int) -> None:
        self.ms -= ms

    def heartbeat(self, worker: int, _: int) -> None:
        fence = self.fences[worker]
        mine = [lease for owner, lease in self.held if owner == fence]
        found = workers.heartbeat(fence, 3, mine, kit.TTL_MS)
        if found is not None:
            self.held = [(owner, found.kept.get(lease.attempt_id, lease) if owner == fence else lease)
                         for owner, lease in self.held]  # fmt: skip

    def restart(self, worker: int, _: int) -> None:
        self.fences[worker] = self.register(worker)

    def adopt(self, worker: int, _: int) -> None:
        fence = self.fences[worker]
        dead = adoption.dead_places(fence.worker_id.partition(":")[0], fence.worker_id, held=[1, 2])
        self.held += [
            (fence, claimed.lease)
            for claimed in adoption.adopt(fence, dead, kit.TTL_MS, 3, lambda _attempt: True)[0]
        ]

    def expire(self, _: int, __: int) -> None:
        expiry.expire_page()

    def silence(self, _: int, __: int) -> None:
        """Nobody shows himself for longer than a node may be silent."""
        self.ms += 125_000
        expiry.expire_page()

    def sweep(self, _: int, __: int) -> None:
        expiry.end_unheld()

    def disable(self, task: int, _: int) -> None:
        row = Task.objects.get(pk=self.tasks[task].pk)
        triggers.set_task_enabled(kit.grant("task.update"), row.pk, row.version, False)

    def drain(self, draining: bool, _: int) -> None:
        draining_services.set_node(draining, kit.NODE, actor=("user", "u"), origin="tests")

    # -- what must hold ---------------------------------------------------------------------------------

    def check(self) -> None:
        runs = {run.pk: run for run in Run.objects.all()}
        numbers: dict[Any, list[int]] = defaultdict(list)
        for run_id, sequence in RunEvent.objects.order_by("sequence").values_list("run_id", "sequence"):
            numbers[run_id].append(sequence)
        attempts = {attempt.run_id: attempt for attempt in RunAttempt.objects.all()}
        assert len(attempts) == RunAttempt.objects.count() == len(runs)
        for run in runs.values():
            assert numbers[run.pk] == list(range(1, run.version + 1)) and run.event_sequence == run.version
            assert not (run.holds_place and (run.ended or run.status == "lost"))
            assert run.ended == (run.finished_at is not None)
            assert run.finished_at is None or run.finished_at >= run.created_at
            if run.pk in self.ended:
                assert run.status == self.ended[run.pk]
            if run.ended:
                self.ended[run.pk] = run.status
                assert attempts[run.pk].status in (*ENDED, "lost")
            if run.status == "running":
                assert attempts[run.pk].status == "running" and run.holds_place
        for task in self.tasks:
            holding = [run for run in runs.values() if run.task_id == task.pk and run.holds_place]
            waiting = [
                run for run in runs.values()
                if run.task_id == task.pk and run.status == "queued" and not run.holds_place
            ]  # fmt: skip
            assert len(holding) <= places.capacity(task)
            assert not waiting or len(holding) == places.capacity(task), "a free place and somebody waiting"
        for lease in RunDispatchLease.objects.all():
            run, attempt = runs[lease.run_id], attempts[lease.run_id]
            assert lease.lease_generation >= self.generations[lease.pk]
            self.generations[lease.pk] = lease.lease_generation
            if lease.status == "completed":
                assert attempt.status not in ("claimed", "starting", "running")
            if lease.status == "leased":
                assert attempt.status in ("claimed", "starting", "running") and not run.ended
            if attempt.status in ("starting", "running"):
                assert lease.status == "leased" or run.cancel_requested_at is not None
        for row in CompletionReceiptJournal.objects.all():
            assert attempts[row.run_id].status != "claimed"

    def settle(self) -> None:
        """Left alone, with one worker that lives, everything comes to an end."""
        draining_services.set_node(False, kit.NODE, actor=("user", "u"), origin="tests")
        for _round in range(60):
            if not Run.objects.exclude(status__in=[*ENDED, "lost"]).exists():
                return
            self.ms += 130_000
            self.fences[0] = fence = self.register(0)
            dead = adoption.dead_places(kit.NODE, fence.worker_id, held=[1])
            adopted, _more = adoption.adopt(fence, dead, kit.TTL_MS, 3, lambda _attempt: True)
            expiry.expire_page()
            expiry.end_unheld()
            for claimed in adopted:
                kit.finish(fence, claimed.lease)
            for claimed in kit.take(fence, 3):
                kit.advance(fence, claimed.lease)
                kit.finish(fence, claimed.lease)
            expiry.end_unheld()
            self.check()
        left = list(Run.objects.exclude(status__in=[*ENDED, "lost"]).values("status", "holds_place"))
        raise AssertionError(f"never ended: {left}")


@pytest.mark.django_db
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(st.lists(STEPS, min_size=40, max_size=80))
def test_the_rules_hold_in_every_order(steps: list[tuple[str, Any, Any]]) -> None:
    with transaction.atomic():
        world: World | None = None
        with clock.fixed(lambda: world.ms if world else START_MS):
            world = World()
            for step in steps:
                try:
                    with transaction.atomic():
                        world.step(*step)
                except DomainError as error:
                    raise AssertionError(f"{step}: {error}") from error
                world.check()
            world.settle()
        transaction.set_rollback(True)


def test_the_rules_hold_with_real_connections(seeded: None) -> None:
    """Starters, sessions, stoppers and sweepers at once: no deadlock or conflict reaches anybody."""
    world = World()
    allowed = (TaskDisabled, VersionConflict, SessionReplaced)

    def session(slot: int) -> Any:
        def call() -> None:
            fence = kit.worker(slot, slots=64, node="c" * 32)
            for _ in range(25):
                for claimed in kit.take(fence, 2):
                    if kit.advance(fence, claimed.lease).go:
                        kit.finish(fence, claimed.lease, slot % 2)
                    else:
                        failed = passes.Failed(claimed.lease, "stopped")
                        passes.store(fence, News(failed=[failed], slots=64), kit.TTL_MS)

        return call

    def start(number: int) -> Any:
        return lambda: world.start(number % 4, number % 3)

    def stop() -> None:
        for run in Run.objects.exclude(status__in=ENDED).order_by("-pk")[:4]:
            services.request_cancel(kit.grant("run.stop"), run.pk)

    calls: list[Any] = [session(slot) for slot in (1, 2, 3)]
    for number in range(60):
        calls += [start(number), start(number + 1)]
        if number % 6 == 0:
            calls += [stop, lambda n=number: world.disable(n % 4, 0)]
        if number % 10 == 0:
            calls += [expiry.end_unheld, expiry.expire_page, services.fold_totals]
    results = kit.race(calls, threads=8)
    unexpected = [r for r in results if isinstance(r, Exception) and not isinstance(r, allowed)]
    assert not unexpected, unexpected[:5]
    world.check()
