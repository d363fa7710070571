"""Control jobs: due, single flight, cursor, failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection

from apps.core import clock, control, jobs, wakeups
from apps.core.models import ControlJob, Wakeup
from tests.conftest import Time


@pytest.fixture(autouse=True)
def _own_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(control, "_jobs", {})
    yield


@pytest.mark.django_db
def test_a_job_runs_when_due_and_keeps_its_cursor(time: Time) -> None:
    seen: list[control.Cursor] = []

    def job(cursor: control.Cursor) -> control.Cursor:
        seen.append(cursor)
        return {"page": cursor.get("page", 0) + 1}

    control.register("job", job, 5_000)
    control.enrol(clock.now())
    assert control.run_due(clock.now()) == 1
    assert control.run_due(clock.now()) == 0
    time.advance(5_000)
    assert control.due(clock.now()) == ["job"]
    control.run_due(clock.now())
    assert seen == [{}, {"page": 1}]
    row = ControlJob.objects.get()
    assert row.cursor == {"page": 2} and row.lease_owner is None and row.failures == 0
    assert row.due_at == clock.now() + timedelta(seconds=5)


@pytest.mark.django_db
def test_enrolling_again_changes_nothing(time: Time) -> None:
    control.register("job", lambda cursor: None, 5_000)
    control.enrol(clock.now())
    control.run_due(clock.now())
    due = ControlJob.objects.get().due_at
    control.enrol(clock.now())
    assert ControlJob.objects.get().due_at == due


@pytest.mark.django_db
def test_a_failure_is_counted_logged_without_its_message_and_tried_later(
    time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    def job(cursor: control.Cursor) -> None:
        raise ValueError("hunter2")

    control.register("bad", job, 5_000)
    control.register("good", lambda cursor: None, 5_000)
    control.enrol(clock.now())
    assert control.run_due(clock.now()) == 1
    row = ControlJob.objects.get(name="bad")
    assert row.failures == 1 and row.cursor == {} and row.due_at == clock.now() + timedelta(seconds=10)
    assert "ValueError" in caplog.text and "hunter2" not in caplog.text
    for _ in range(20):
        time.advance(7_200_000)
        control.run_due(clock.now())
    row.refresh_from_db()
    assert row.failures == 21 and row.due_at == clock.now() + timedelta(hours=1)


@pytest.mark.django_db
def test_a_job_whose_process_died_is_taken_over(time: Time) -> None:
    control.register("job", lambda cursor: {"done": True}, 5_000)
    control.enrol(clock.now())
    assert control._claim("job", "gone") is not None
    assert control.run_due(clock.now()) == 0
    time.advance(control.LEASE_MS)
    assert control.run_due(clock.now()) == 1
    assert ControlJob.objects.get().lease_generation == 2


@pytest.mark.django_db
def test_a_holder_that_was_replaced_settles_nothing(time: Time) -> None:
    control.register("job", lambda cursor: None, 5_000)
    control.enrol(clock.now())
    old = control._claim("job", "old")
    assert old is not None
    time.advance(control.LEASE_MS)
    assert control._claim("job", "new") is not None
    control._settle(control.jobs()[0], old, {"stale": True}, False)
    row = ControlJob.objects.get()
    assert row.cursor == {} and row.lease_owner == "new"


@pytest.mark.django_db(transaction=True)
def test_one_flight_at_a_time() -> None:
    running, most, total = 0, 0, 0
    guard = threading.Lock()
    gate = threading.Barrier(4)

    def job(cursor: control.Cursor) -> None:
        nonlocal running, most, total
        with guard:
            running, total = running + 1, total + 1
            most = max(most, running)
        threading.Event().wait(0.2)
        with guard:
            running -= 1

    control.register("job", job, 5_000)
    control.enrol(clock.now())

    def work() -> None:
        try:
            gate.wait()
            control.run_due(clock.now())
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, total) == (1, 1)


def test_too_frequent_a_job_is_refused() -> None:
    with pytest.raises(ValueError):
        control.register("job", lambda cursor: None, 999)


@pytest.mark.django_db
def test_a_control_message_answers_the_ring_and_runs_what_is_due(time: Time) -> None:
    control.register("job", lambda cursor: {"ran": True}, 5_000)
    control.enrol(clock.now())
    wakeups.ring(jobs.CONTROL)
    jobs.run_control()
    assert Wakeup.objects.get(cluster=jobs.CONTROL).answered
    assert ControlJob.objects.get().cursor == {"ran": True}
