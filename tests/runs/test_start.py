"""Starting: who gets a place, what a key remembers, what a start costs (api.md, lessons D5)."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import AuditEntry
from apps.core import ids
from apps.core.errors import InvalidInput, NotFound
from apps.projects.errors import PolicyFenceConflict
from apps.runs import payloads, services
from apps.runs.errors import IdempotencyKeyReused, InputTooLarge, TaskArchived, TaskDisabled
from apps.runs.models import Run, RunEvent, Skip
from apps.runs.services import Skipped, Started
from apps.triggers import services as triggers
from tests import people
from tests.runs import kit


@pytest.fixture(autouse=True)
def _keyring(tmp_path: Any, settings: Any) -> None:
    from apps.vault import keyring

    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()


# -- what a start writes ------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_start() -> None:
    task = kit.task(priority=7)
    run = kit.fresh(kit.run_of(task))
    assert (run.status, run.version, run.event_sequence, run.priority) == ("queued", 2, 2, 7)
    assert run.holds_place and run.task_revision == "1" and run.task_name == "nightly"
    assert (run.triggered_by_type, run.triggered_by_id) == ("system", "tests")
    assert kit.events(run) == ["attempt.claimed", "run.queued"]
    attempt = kit.attempt_of(run)
    assert (attempt.status, attempt.attempt, attempt.callback_sequence) == ("claimed", 1, 0)
    kit.check_history(run)


@pytest.mark.django_db
@pytest.mark.parametrize("priority", [-1000, 0, 1000])
def test_a_priority_of_its_own(priority: int) -> None:
    assert kit.run_of(kit.task(priority=3), priority=priority).priority == priority


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options",
    [
        {"priority": 1001}, {"priority": -1001}, {"trigger_type": "nonsense"}, {"input": [1]}, {"args": "text"},
        {"args": ["a\0"]}, {"args": [1]}, {"args": ["\ud800"]}, {"args": ["x"] * 257}, {"input": {"x": float("nan")}},
        {"input": {1: 2}}, {"input": {"x": "a" * 65_536}}, {"args": ["a" * 65_536]},
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(options: dict[str, Any]) -> None:
    task = kit.task()
    with pytest.raises(InvalidInput):
        kit.start(task, **options)
    assert not Run.objects.exists() and not RunEvent.objects.exists()


@pytest.mark.django_db
def test_input_at_its_bound() -> None:
    task = kit.task()
    room = 65_536 - len('{"args":[],"input":{"x":""}}')
    run = kit.run_of(task, input={"x": "a" * room})
    assert payloads.open_input(kit.fresh(run)).input == {"x": "a" * room}
    with pytest.raises(InputTooLarge):
        kit.start(task, input={"x": "a" * (room + 1)})


@pytest.mark.django_db
def test_input_is_sealed() -> None:
    run = kit.fresh(kit.run_of(kit.task(), input={"password": "hunter2"}, args=["s3cret-arg"]))
    from apps.vault.models import SealedPayload

    sealed = SealedPayload.objects.get(pk=run.input_ref)
    everything = str(list(Run.objects.values())) + str(list(RunEvent.objects.values())) + str(vars(sealed))
    assert "hunter2" not in everything and "s3cret-arg" not in everything


@pytest.mark.django_db
def test_a_person_is_told_of_in_the_audit_and_a_schedule_is_not() -> None:
    task = kit.task()
    ann = people.member("operator")
    run = kit.run_of(task, grant=people.grant(ann, "run.start"))
    entry = AuditEntry.objects.filter(action="run.started").get()
    assert entry.subject_id == str(run.pk)
    kit.run_of(task)
    assert AuditEntry.objects.filter(action="run.started").count() == 1


@pytest.mark.django_db
def test_a_right_that_ended_meanwhile_starts_nothing() -> None:
    task = kit.task()
    ann = people.member("operator")
    grant = people.grant(ann, "run.start")
    people.give(ann, None, version=2)
    with pytest.raises(PolicyFenceConflict):
        kit.start(task, grant=grant)
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_tasks_that_cannot_start() -> None:
    task = kit.task()
    with pytest.raises(NotFound):
        kit.start(ids.uuid7())
    triggers.set_task_enabled(kit.grant("task.update"), task.pk, 1, False)
    with pytest.raises(TaskDisabled):
        kit.start(task)
    triggers.archive_task(kit.grant("task.delete"), task.pk, 2)
    with pytest.raises(TaskArchived):
        kit.start(task)
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_a_task_of_another_project_is_not_there() -> None:
    task = kit.task()
    other = people.project(people.account("ben"))
    with pytest.raises(NotFound):
        kit.start(task, grant=kit.grant(project=other))


@pytest.mark.django_db
def test_start_costs_the_same_whoever_waits(django_assert_max_num_queries: Any) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    task = kit.task()
    kit.run_of(task)

    def cost() -> int:
        with CaptureQueriesContext(connection) as seen:
            kit.run_of(task)
        return len(seen)

    first = cost()
    for _ in range(20):
        kit.run_of(task)
    assert cost() == first
    with django_assert_max_num_queries(16):
        kit.run_of(task)


# -- keys ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_repeated_start_is_the_same_run() -> None:
    task = kit.task()
    first = kit.start(task, idempotency_key="k", input={"a": 1}, args=["x"])
    again = kit.start(task, idempotency_key="k", input={"a": 1.0}, args=["x"])
    assert (first.replayed, again.replayed) == (False, True)
    assert again.run.pk == first.run.pk and Run.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changes", [{"input": {"a": 2}}, {"input": None}, {"args": ["y"]}, {"priority": 5}, {"task": True}]
)
def test_a_key_that_started_something_else(changes: dict[str, Any]) -> None:
    task = kit.task()
    kit.start(task, idempotency_key="k", input={"a": 1}, args=["x"])
    if changes.pop("task", False):
        task = kit.task("another")
    with pytest.raises(IdempotencyKeyReused):
        kit.start(task, **{"idempotency_key": "k", "input": {"a": 1}, "args": ["x"], **changes})
    assert Run.objects.count() == 1


@pytest.mark.django_db
def test_a_replay_answers_also_when_the_task_could_not_start_any_more() -> None:
    task = kit.task()
    first = kit.start(task, idempotency_key="k")
    triggers.set_task_enabled(kit.grant("task.update"), task.pk, 1, False)
    assert kit.start(task, idempotency_key="k").run.pk == first.run.pk


@pytest.mark.django_db
def test_keys_of_the_api_and_of_the_panel_are_apart() -> None:
    task = kit.task()
    ann = people.member("operator")
    panel = kit.run_of(task, idempotency_key="k", grant=people.grant(ann, "run.start"))
    answer = people.api(ann)("POST", f"projects/default/tasks/{task.slug}/runs", {}, Idempotency_Key="k")
    assert answer.status_code == 201
    assert answer.json()["id"] != str(panel.pk)
    again = people.api(ann)("POST", f"projects/default/tasks/{task.slug}/runs", {}, Idempotency_Key="k")
    assert (again.status_code, again.json()["id"]) == (200, answer.json()["id"])
    assert Run.objects.count() == 2


@pytest.mark.parametrize("concurrency", ["queue", "replace", "skip"])
def test_one_key_for_two_tasks_at_once(seeded: None, concurrency: str) -> None:
    tasks = [kit.task(name, concurrency=concurrency) for name in "abcd"]
    results = kit.race([lambda t=task: kit.start(t, idempotency_key="k") for task in tasks])
    assert sum(isinstance(result, Started) for result in results) == 1, results
    assert sum(isinstance(result, IdempotencyKeyReused) for result in results) == 3
    assert Run.objects.count() == 1


# -- places -------------------------------------------------------------------------------------------------


def test_queue_never_gives_two_places(seeded: None) -> None:
    task = kit.task(concurrency="queue")
    results = kit.race([lambda: kit.start(task)] * 20, threads=5)
    assert all(isinstance(result, Started) for result in results), results
    assert kit.holders(task) == 1 and Run.objects.count() == 20
    for run in Run.objects.all():
        kit.check_history(run)


def test_parallel_gives_as_many_places_as_there_are(seeded: None) -> None:
    task = kit.task(concurrency="parallel", max_parallel=3)
    kit.race([lambda: kit.start(task)] * 20, threads=5)
    assert kit.holders(task) == 3 and Run.objects.count() == 20


def test_skip_starts_one_and_tells_of_the_others(seeded: None) -> None:
    task = kit.task(concurrency="skip")
    results = kit.race([lambda: kit.start(task)] * 20, threads=5)
    started = [result for result in results if isinstance(result, Started)]
    skipped = [result for result in results if isinstance(result, Skipped)]
    assert (len(started), len(skipped)) == (1, 19), results
    assert Run.objects.count() == 1 and Skip.objects.count() == 19
    assert {result.skip.blocking_run_id for result in skipped} == {started[0].run.pk}
    assert set(Skip.objects.values_list("reason", flat=True)) == {"concurrency_skipped"}


def test_replace_leaves_the_newest(seeded: None) -> None:
    task = kit.task(concurrency="replace")
    results = kit.race([lambda: kit.start(task)] * 20, threads=5)
    assert all(isinstance(result, Started) for result in results), results
    (left,) = Run.objects.exclude(status="cancelled")
    assert left.status == "queued" and left.holds_place
    assert kit.holders(task) == 1
    for run in Run.objects.all():
        kit.check_history(run)
    assert Run.objects.filter(cancel_reason="policy").count() == 19


def test_replace_against_workers_that_claim(seeded: None) -> None:
    """A run that a worker takes at the moment it is replaced keeps its place until its end is known."""
    task = kit.task(concurrency="replace")
    fences = [kit.worker(slot, slots=64) for slot in (1, 2)]
    calls: list[Any] = []
    for number in range(24):
        calls.append(lambda: kit.start(task))
        calls.append(lambda f=fences[number % 2]: kit.take(f, 4))
    results = kit.race(calls, threads=6)
    assert not [result for result in results if isinstance(result, Exception)], results
    assert kit.holders(task) == 1
    for run in Run.objects.all():
        kit.check_history(run)
        assert not (run.ended and run.holds_place)


@pytest.mark.django_db
def test_replace_stops_what_runs_and_waits_for_it() -> None:
    task = kit.task(concurrency="replace")
    fence = kit.worker()
    first = kit.run_of(task)
    lease = kit.claimed(fence, first)
    kit.advance(fence, lease)
    second, third = kit.run_of(task), kit.run_of(task)
    assert kit.fresh(first).cancel_reason == "policy" and kit.fresh(first).holds_place
    assert (kit.fresh(second).status, kit.fresh(third).holds_place) == ("cancelled", False)
    assert RunEvent.objects.get(run=second, type="run.cancel_requested").payload["note"] == "replaced"
    kit.finish(fence, lease)
    assert kit.fresh(first).status == "cancelled"
    assert kit.fresh(third).holds_place and kit.candidate_runs() == [third.pk]


@pytest.mark.django_db
def test_freed_places_go_by_priority_then_by_time(time: Any) -> None:
    task = kit.task(concurrency="queue")
    fence = kit.worker()
    holder = kit.run_of(task)
    order = []
    for priority in (0, 5, 5, -3):
        time.advance(1)
        order.append(kit.run_of(task, priority=priority))
    for run in (order[1], order[2], order[0], order[3]):
        lease = kit.claimed(fence, holder)
        kit.advance(fence, lease)
        kit.finish(fence, lease)
        assert kit.fresh(holder).status == "succeeded" and not kit.fresh(holder).holds_place
        assert kit.holders(task) == 1 and kit.fresh(run).holds_place
        holder = run


@pytest.mark.django_db
def test_more_places_are_given_as_the_task_is_changed() -> None:
    task = kit.task(concurrency="queue")
    runs = [kit.run_of(task) for _ in range(5)]
    assert kit.holders(task) == 1
    changed = triggers.change_task(
        kit.grant("task.update"), task.pk, 1, {"concurrency": "parallel", "max_parallel": 3}
    )
    assert kit.holders(task) == 3
    assert [kit.fresh(run).holds_place for run in runs] == [True, True, True, False, False]
    triggers.change_task(
        kit.grant("task.update"), task.pk, changed.version, {"concurrency": "queue", "max_parallel": 1}
    )
    assert kit.holders(task) == 3
    services.request_cancel(kit.grant("run.stop"), runs[0].pk)
    assert kit.holders(task) == 2
