"""Stopping, retrying, disabling and archiving; totals of what ended (api.md, lessons D6)."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core import clock, ids
from apps.core.errors import InvalidInput, NotFound
from apps.projects.errors import ProjectArchived
from apps.runs import payloads, services
from apps.runs.errors import RunNotEnded, TaskDisabled
from apps.runs.models import Run, UncountedRun
from apps.runs.services import Started
from apps.tasks.models import Task
from apps.triggers import services as triggers
from tests import people
from tests.runs import kit


@pytest.fixture(autouse=True)
def _keyring(tmp_path: Any, settings: Any) -> None:
    from apps.vault import keyring

    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()


@pytest.mark.django_db
def test_a_waiting_run_ends_at_once_and_its_place_is_given_on(time: Any) -> None:
    task = kit.task()
    first, second = kit.run_of(task), kit.run_of(task)
    result = services.request_cancel(kit.grant("run.stop"), first.pk)
    assert result.outcome == "accepted" and result.run.status == "cancelled"
    ended, attempt = kit.fresh(first), kit.attempt_of(first)
    assert (ended.status, attempt.status, ended.error_code) == (
        "cancelled",
        "cancelled",
        "EXECUTION_CANCELLED",
    )
    assert ended.finished_at == clock.now() and not ended.holds_place
    assert kit.events(first)[-3:] == ["run.cancel_requested", "attempt.cancelled", "run.cancelled"]
    assert kit.fresh(second).holds_place
    kit.check_history(first)


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["claimed", "starting", "running"])
def test_a_carried_run_keeps_its_state_until_its_end_is_known(state: str) -> None:
    run = kit.run_of(kit.task())
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    if state != "claimed":
        kit.advance(fence, lease, to=state)
    before = kit.fresh(run).status
    assert services.request_cancel(kit.grant("run.stop"), run.pk).outcome == "accepted"
    assert kit.fresh(run).status == before and kit.fresh(run).holds_place
    if state == "claimed":
        done = kit.advance(fence, lease)
        assert not done.go and kit.attempt_of(run).status == "claimed"
    else:
        kit.finish(fence, lease, 3)
        assert kit.fresh(run).status == "cancelled" and kit.attempt_of(run).exit_code == 3
    kit.check_history(run)


@pytest.mark.django_db
@pytest.mark.parametrize("note", ["x" * 201, "a\nb", "\0", "\ud800"])
def test_notes_have_bounds(note: str) -> None:
    run = kit.run_of(kit.task())
    with pytest.raises(InvalidInput):
        services.request_cancel(kit.grant("run.stop"), run.pk, note=note)
    assert kit.fresh(run).status == "queued"
    services.request_cancel(kit.grant("run.stop"), run.pk, note="x" * 200)


@pytest.mark.django_db
def test_a_run_of_another_project_is_not_there() -> None:
    run = kit.run_of(kit.task())
    other = people.project(people.account("ben"))
    with pytest.raises(NotFound):
        services.request_cancel(kit.grant("run.stop", other), run.pk)
    with pytest.raises(NotFound):
        services.retry_run(kit.grant("run.retry", other), run.pk)


def test_stop_against_claim(seeded: None) -> None:
    """Either the stop came first and nothing is carried, or the worker did and reads the wish."""
    task = kit.task(concurrency="parallel", max_parallel=64)
    runs = [kit.run_of(task) for _ in range(16)]
    fences = [kit.worker(slot, slots=64) for slot in (1, 2)]
    calls: list[Any] = [lambda r=run: services.request_cancel(kit.grant("run.stop"), r.pk) for run in runs]
    calls += [lambda f=fence: kit.take(f, 4) for fence in fences * 6]
    results = kit.race(calls, threads=6)
    assert not [result for result in results if isinstance(result, Exception)], results
    for run in runs:
        found = kit.fresh(run)
        assert found.cancel_requested_at is not None
        assert found.status in ("cancelled", "dispatching")
        assert ("run.dispatching" in kit.events(run)) == (found.status == "dispatching")
        kit.check_history(run)


@pytest.mark.django_db
def test_retry() -> None:
    task = kit.task()
    run = kit.run_of(task, input={"a": 1}, args=["x", "y"], priority=9)
    retry = kit.grant("run.retry")
    with pytest.raises(RunNotEnded):
        services.retry_run(retry, run.pk)
    services.request_cancel(kit.grant("run.stop"), run.pk)
    again = services.retry_run(retry, run.pk, idempotency_key="r")
    assert isinstance(again, Started)
    new = kit.fresh(again.run)
    assert new.pk != run.pk and new.retry_of_id == run.pk and new.trigger_type == "run_manual_retry"
    assert new.priority == 9 and payloads.open_input(new) == payloads.open_input(run)
    replayed = services.retry_run(retry, run.pk, idempotency_key="r")
    assert isinstance(replayed, Started) and replayed.replayed and replayed.run.pk == new.pk
    assert kit.fresh(run).status == "cancelled"


@pytest.mark.django_db
def test_retry_of_a_lost_run_uses_the_task_as_it_is_now(time: Any) -> None:
    from apps.dispatch.services import expiry

    task = kit.task()
    run = kit.run_of(task)
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    time.advance(200_000)
    assert expiry.expire(lease.attempt_id) == "lost"
    triggers.change_task(kit.grant("task.update"), task.pk, 1, {"command": ["false"]})
    again = services.retry_run(kit.grant("run.retry"), run.pk)
    assert isinstance(again, Started) and again.run.task_revision == "2"
    triggers.set_task_enabled(kit.grant("task.update"), task.pk, 2, False)
    with pytest.raises(TaskDisabled):
        services.retry_run(kit.grant("run.retry"), run.pk)


def filled(task: Task) -> tuple[Run, list[Run]]:
    """One run that runs, three that wait."""
    fence = kit.worker()
    first = kit.run_of(task)
    kit.advance(fence, kit.claimed(fence, first))
    return first, [kit.run_of(task) for _ in range(3)]


@pytest.mark.django_db
@pytest.mark.parametrize("way", ["disable", "change", "archive", "empty", "project"])
def test_whatever_stops_a_task_empties_its_queue(way: str) -> None:
    task = kit.task()
    live, waiting = filled(task)
    untouched = kit.run_of(kit.task("other"))
    if way == "disable":
        triggers.set_task_enabled(kit.grant("task.update"), task.pk, 1, False)
    elif way == "change":
        triggers.change_task(kit.grant("task.update"), task.pk, 1, {"enabled": False})
    elif way == "archive":
        triggers.archive_task(kit.grant("task.delete"), task.pk, 1)
    elif way == "empty":
        assert triggers.empty_queue(kit.grant("run.stop"), task.pk) == 3
    else:
        ann = people.member("owner")
        triggers.archive_project(people.grant(ann, "project.manage"), 1)
    assert {kit.fresh(run).status for run in waiting} == {"cancelled"}
    assert {kit.fresh(run).cancel_reason for run in waiting} == {"policy"}
    assert kit.fresh(live).status == "running" and kit.fresh(live).cancel_requested_at is None
    assert kit.fresh(untouched).status == ("cancelled" if way == "project" else "queued")
    for run in (live, *waiting):
        kit.check_history(run)
    if way == "project":
        with pytest.raises(ProjectArchived):
            kit.start(task)


@pytest.mark.django_db
@pytest.mark.parametrize("way", ["task", "project"])
def test_a_leased_run_that_has_not_begun_does_not_begin(way: str, time: Any) -> None:
    from apps.dispatch.services import expiry, passes

    task = kit.task(concurrency="parallel", max_parallel=4)
    fence = kit.worker()
    leased, given_back = kit.run_of(task), kit.run_of(task)
    lease, other = kit.claimed(fence, leased), kit.claimed(fence, given_back)
    passes.store(fence, passes.News(returned=[other], slots=8), kit.TTL_MS)
    assert kit.fresh(given_back).status == "dispatching"
    if way == "task":
        triggers.archive_task(kit.grant("task.delete"), task.pk, 1)
    else:
        triggers.archive_project(people.grant(people.member("owner"), "project.manage"), 1)
    assert not kit.advance(fence, lease).go
    assert kit.candidate_runs() == []
    assert expiry.end_unheld() == 1
    assert kit.fresh(given_back).status == "cancelled"
    assert kit.fresh(leased).cancel_reason == "policy"


def test_disabling_against_starts(seeded: None) -> None:
    for _round in range(4):
        task = kit.task(f"t{_round}")
        calls: list[Any] = [lambda t=task: kit.start(t)] * 10
        calls.insert(5, lambda t=task: triggers.set_task_enabled(kit.grant("task.update"), t.pk, 1, False))
        results = kit.race(calls, threads=6)
        assert all(isinstance(result, Started | TaskDisabled | Task) for result in results), results
        assert not Run.objects.filter(task=task, status="queued").exists()


def test_archiving_a_project_against_starts(seeded: None) -> None:
    ann = people.member("owner")
    tasks = [kit.task(f"t{number}") for number in range(3)]
    grant = people.grant(ann, "project.manage")
    calls: list[Any] = [lambda t=task: kit.start(t) for task in tasks * 5]
    calls.insert(6, lambda: triggers.archive_project(grant, 1))
    calls.insert(7, lambda: triggers.change_task(kit.grant("task.update"), tasks[0].pk, 1, {"name": "new"}))
    results = kit.race(calls, threads=6)
    unexpected = [r for r in results if isinstance(r, Exception) and not isinstance(r, ProjectArchived)]
    assert not unexpected, unexpected
    assert not Run.objects.filter(status="queued").exists()


@pytest.mark.django_db
def test_every_end_is_counted_once_with_its_time(time: Any) -> None:
    from apps.runs.models import RunHourTotal

    task = kit.task(concurrency="parallel", max_parallel=8)
    fence = kit.worker()
    for number in range(3):
        lease = kit.claimed(fence, kit.run_of(task))
        kit.advance(fence, lease)
        time.advance(500)
        kit.finish(fence, lease, number % 2)
    services.request_cancel(kit.grant("run.stop"), kit.run_of(task).pk)
    assert UncountedRun.objects.count() == 4
    assert services.fold_totals(limit=3) == 3 and services.fold_totals() == 1 and services.fold_totals() == 0
    totals = {row.status: (row.runs, row.duration_ms) for row in RunHourTotal.objects.all()}
    assert totals == {"succeeded": (2, 1000), "failed": (1, 500), "cancelled": (1, 0)}
    assert all(row.hour.minute == row.hour.second == 0 for row in RunHourTotal.objects.all())


def test_concurrent_folders_count_once(seeded: None) -> None:
    from apps.runs.models import RunHourTotal

    task = kit.task(concurrency="parallel", max_parallel=64)
    now = clock.now()
    UncountedRun.objects.bulk_create(
        UncountedRun(
            run_id=ids.uuid7(), project_id="default", task_id=task.pk, status=status, finished_at=now,
            duration_ms=10,
        )
        for _ in range(60)
        for status in ("succeeded", "failed")
    )  # fmt: skip
    results = kit.race([lambda: services.fold_totals(limit=7)] * 24, threads=6)
    assert not [result for result in results if isinstance(result, Exception)], results
    while services.fold_totals():
        pass
    assert sum(row.runs for row in RunHourTotal.objects.all()) == 120
    assert sum(row.duration_ms for row in RunHourTotal.objects.all()) == 1200
    assert RunHourTotal.objects.count() == 2
