"""spec/runs.md §19, scenarios 1 to 8: starts, transitions, events, candidates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.core.errors import DomainError, InvalidInput, VersionConflict
from apps.core.streams import Actor, DuplicateEvent, PayloadNotObject, PayloadTooLarge
from apps.dispatch import candidates
from apps.dispatch.models import RunDispatchLease
from apps.projects.models import Project
from apps.runs.errors import IdempotencyKeyInvalid, InvalidMetadata, InvalidTransition
from apps.runs.machine import ATTEMPT_EDGES, RUN_EDGES, Change
from apps.runs.models import Run, RunAttempt, RunEvent
from apps.runs.services import Started, writes
from tests.runs import kit

ACTOR = Actor("system", "tests")
WORKER = Actor("worker", "w")


def other_project() -> str:
    now = clock.now()
    return Project.objects.create(
        id="other", name="Other", slug="other", status="active", version=1, created_at=now, updated_at=now
    ).pk


def running(task: Any) -> tuple[Run, RunAttempt]:
    """A run at version 6 whose attempt runs."""
    run = kit.run_of(task)
    attempt = kit.attempt_of(run)
    change = Change(run, attempt)
    now = clock.now()
    change.move_run("dispatching", now, WORKER)
    change.move_attempt("starting", now, WORKER, callback_token_hash="a" * 64)
    change.move_attempt("running", now, WORKER)
    change.move_run("running", now, WORKER)
    with transaction.atomic():
        writes.write_one(change, now)
    return kit.fresh(run), kit.attempt_of(run)


@pytest.mark.parametrize("concurrency", ["queue", "skip", "replace", "parallel"])
def test_runs_01_idempotent_start(seeded: None, concurrency: str) -> None:
    task = kit.task(concurrency=concurrency, **({"max_parallel": 8} if concurrency == "parallel" else {}))
    results = kit.race([lambda: kit.start(task, idempotency_key="K")] * 6)
    assert all(isinstance(result, Started) for result in results), results
    assert len({result.run.pk for result in results}) == 1
    assert [result.replayed for result in results].count(False) == 1
    assert Run.objects.count() == 1
    assert kit.fresh(results[0].run).status == "queued"
    kit.check_history(results[0].run)


@pytest.mark.django_db
def test_runs_01_the_key_counts_within_the_project() -> None:
    first = kit.run_of(kit.task(), idempotency_key="K")
    elsewhere = kit.task(project=other_project())
    second = kit.run_of(elsewhere, idempotency_key="K", grant=kit.grant(project="other"))
    assert first.pk != second.pk


@pytest.mark.django_db
def test_runs_01_a_key_too_long_is_refused_before_any_query() -> None:
    task = kit.task()
    kit.start(task, idempotency_key="k" * 255)
    for key in ("k" * 256, "", "a\0b", "a\nb"):
        with CaptureQueriesContext(connection) as seen, pytest.raises(IdempotencyKeyInvalid):
            kit.start(task, idempotency_key=key)
        assert len(seen) == 0


@pytest.mark.django_db
def test_runs_02_sequence_integrity() -> None:
    run, attempt = running(kit.task())
    version = run.version
    change = Change(run, attempt)
    now = clock.now()
    change.move_attempt("succeeded", now, WORKER, callback_sequence=1, exit_code=0)
    change.move_run("succeeded", now, WORKER)
    with transaction.atomic():
        writes.write_one(change, now)
    ended = kit.fresh(run)
    assert (ended.version, ended.event_sequence) == (version + 2, version + 2)
    newest = list(RunEvent.objects.filter(run=run).order_by("-sequence")[:2])
    assert [(event.sequence, event.type) for event in reversed(newest)] == [
        (version + 1, "attempt.succeeded"),
        (version + 2, "run.succeeded"),
    ]
    assert [event.payload["version"] for event in reversed(newest)] == [version + 1, version + 2]
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_03_version_race() -> None:
    run, _attempt = running(kit.task())
    version, count = run.version, RunEvent.objects.count()
    first, second = Change(kit.fresh(run), kit.attempt_of(run)), Change(kit.fresh(run), kit.attempt_of(run))
    now = clock.now()
    first.move_run("waiting_approval", now, ACTOR)
    second.move_run("lost", now, ACTOR)
    with transaction.atomic():
        writes.write_one(first, now)
    with pytest.raises(VersionConflict) as refused, transaction.atomic():
        writes.write_one(second, now)
    assert refused.value.extra == {"expected_version": version, "current_version": version + 1}
    assert RunEvent.objects.count() == count + 1
    assert kit.fresh(run).status == "waiting_approval"
    kit.check_history(run)


def test_runs_03_real_transactions_race(seeded: None) -> None:
    run, _attempt = running(kit.task())

    targets = ["waiting_approval", "lost", "succeeded", "failed"]
    stale = [Change(kit.fresh(run), kit.attempt_of(run)) for _ in targets]
    for change, to in zip(stale, targets, strict=True):
        change.move_run(to, clock.now(), ACTOR)

    def store(change: Change) -> Any:
        def call() -> None:
            with transaction.atomic():
                writes.write_one(change, clock.now())

        return call

    results = kit.race([store(change) for change in stale])
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, VersionConflict) for result in results) == len(targets) - 1
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_04_illegal_edges() -> None:
    run, attempt = running(kit.task())
    now = clock.now()
    for origin, targets in RUN_EDGES.items():
        for to in sorted(RUN_EDGES.keys() - targets):
            change = Change(Run(pk=run.pk, status=origin, created_at=run.created_at), None)
            with pytest.raises(InvalidTransition) as refused:
                change.move_run(to, now, ACTOR)
            assert refused.value.extra == {"from": origin, "to": to}
            assert not change.events and change.run.version == 0
    for origin, targets in ATTEMPT_EDGES.items():
        for to in sorted(ATTEMPT_EDGES.keys() - targets):
            row = RunAttempt(
                pk=attempt.pk, run_id=run.pk, status=origin, attempt=1, created_at=run.created_at
            )
            with pytest.raises(InvalidTransition):
                Change(kit.fresh(run), row).move_attempt(to, now, ACTOR)
    for to in RUN_EDGES:
        assert to not in RUN_EDGES["succeeded"]
    assert "running" not in RUN_EDGES["queued"]
    assert "failed" not in ATTEMPT_EDGES["claimed"] and "succeeded" not in ATTEMPT_EDGES["starting"]


@pytest.mark.django_db
def test_runs_04_nothing_of_a_refused_change_is_stored() -> None:
    run = kit.run_of(kit.task())
    change = Change(kit.fresh(run), kit.attempt_of(run))
    with pytest.raises(InvalidTransition):
        change.move_run("running", clock.now(), ACTOR)
    with transaction.atomic():
        writes.write([change], clock.now())
    assert (kit.fresh(run).status, kit.fresh(run).version) == ("queued", run.version)
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_04_attempts_of_ended_runs_and_of_other_runs() -> None:
    task = kit.task(concurrency="parallel", max_parallel=4)
    run, attempt = running(task)
    other = kit.run_of(task)
    with pytest.raises(DomainError):
        Change(other, attempt)
    Run.objects.filter(pk=run.pk).update(status="failed")
    with pytest.raises(InvalidTransition):
        Change(kit.fresh(run), attempt).move_attempt("failed", clock.now(), ACTOR)


@pytest.mark.django_db
def test_runs_05_deadline_once(time: Any) -> None:
    run = kit.run_of(kit.task())
    at = clock.now()

    def starting(deadline: Any, known: Any = None) -> Change:
        attempt = kit.attempt_of(run)
        attempt.deadline_at, attempt.status = known, "claimed"
        change = Change(kit.fresh(run), attempt)
        change.move_attempt("starting", at, WORKER, deadline_at=deadline)
        return change

    with pytest.raises(InvalidMetadata):
        starting(at)
    later = at + timedelta(milliseconds=1)
    change = starting(later)
    with transaction.atomic():
        writes.write_one(change, at)
    stored = kit.attempt_of(run)
    assert stored.deadline_at == later
    assert RunEvent.objects.get(run=run, type="attempt.starting").payload["deadline_at_ms"] == clock.to_ms(
        later
    )
    with pytest.raises(InvalidMetadata):
        starting(later + timedelta(milliseconds=1), known=later)
    with pytest.raises(InvalidMetadata):
        Change(kit.fresh(run), stored).move_attempt("running", at, WORKER, deadline_at=later)


def payload_of(size: int) -> dict[str, str]:
    return {"x": "é" * ((size - 8) // 2) + "a" * ((size - 8) % 2)}


@pytest.mark.django_db
def test_runs_06_event_limits() -> None:
    run = kit.run_of(kit.task())
    version = kit.fresh(run).version

    def tell(payload: Any, key: str | None = None) -> None:
        change = Change(kit.fresh(run), kit.attempt_of(run))
        change._tell("run.noted", ACTOR, payload, key)
        with transaction.atomic():
            writes.write_one(change, clock.now())

    with pytest.raises(PayloadTooLarge) as refused:
        tell(payload_of(16_385))
    assert refused.value.extra == {"actual": 16_385, "allowed": 16_384}
    for wrong in ([1, 2], "text", None, 7):
        with pytest.raises(PayloadNotObject):
            tell(wrong)
    assert kit.fresh(run).version == version
    tell(payload_of(16_384), "once")
    assert kit.fresh(run).version == version + 1
    with pytest.raises(DuplicateEvent):
        tell({}, "once")
    assert kit.fresh(run).version == version + 1
    tell({}, None)
    tell({}, None)
    kit.check_history(run)


def queue(time: Any, task: Any, *wanted: tuple[int, int]) -> dict[tuple[int, int], Run]:
    found = {}
    base = time.ms
    for priority, at in wanted:
        time.ms = base + at
        found[priority, at] = kit.run_of(task, priority=priority)
    time.ms = base + 10_000
    return found


@pytest.mark.django_db
def test_runs_07_candidate_order(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    runs = queue(time, task, (5, 200), (9, 300), (9, 100))
    wanted = [runs[9, 100].pk, runs[9, 300].pk, runs[5, 200].pk]
    assert kit.candidate_runs() == wanted
    assert candidates.take(clock.now(), 64) == wanted

    walked, after = [], None
    while found := candidates.page(clock.now(), after=after, limit=1):
        walked.append(found[0].run_id)
        after = found[0].position
        if len(walked) == 2:
            kit.run_of(task, priority=99)
    assert walked == wanted


@pytest.mark.django_db
def test_runs_07_equal_priority_and_time_walk_by_id(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    runs = {kit.run_of(task).pk for _ in range(10)}
    walked, after = [], None
    while found := candidates.page(clock.now(), after=after, limit=3):
        walked += [item.run_id for item in found]
        after = found[-1].position
    assert len(walked) == 10 and set(walked) == runs


@pytest.mark.django_db
def test_runs_08_candidate_filter(time: Any) -> None:
    task = kit.task(concurrency="parallel", max_parallel=64)
    run = kit.run_of(task)
    lease = kit.claimed(kit.worker(), run)
    expires = clock.to_ms(lease.expires_at)
    time.ms = expires - 1
    assert kit.candidate_runs() == [] and candidates.take(clock.now(), 64) == []
    time.ms = expires
    assert kit.candidate_runs() == [run.pk] and candidates.take(clock.now(), 64) == [run.pk]

    def never(**values: Any) -> None:
        with transaction.atomic():
            Run.objects.filter(pk=run.pk).update(**values)
            assert kit.candidate_runs() == [] and candidates.take(clock.now(), 64) == []
            transaction.set_rollback(True)

    never(cancel_requested_at=clock.now(), cancel_reason="user")
    never(execution_owner="legacy")
    never(holds_place=False)
    never(status="running")
    with transaction.atomic():
        RunAttempt.objects.filter(run=run).update(status="starting")
        assert kit.candidate_runs() == [] and candidates.take(clock.now(), 64) == []
        transaction.set_rollback(True)
    RunDispatchLease.objects.filter(run=run).update(status="completed", completed_at=clock.now())
    assert kit.candidate_runs() == [] and candidates.take(clock.now(), 64) == []
    for limit in (0, 65, -1):
        with pytest.raises(InvalidInput):
            candidates.page(clock.now(), limit=limit)
