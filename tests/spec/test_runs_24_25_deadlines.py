"""spec/runs.md §19, scenarios 24 and 25: a deadline that passed becomes a request, and the request decides the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.dispatch import jobs
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.services import deadlines
from apps.runs import services
from apps.runs.models import Run, RunEvent
from tests.runs import kit


def limited(name: str = "limited", timeout_ms: int = 1_000) -> tuple[Run, WorkerFence, LeaseFence]:
    run = kit.run_of(kit.task(name, timeout_ms=timeout_ms))
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease, timeout_ms=timeout_ms)
    return run, fence, lease


def overdue() -> list[Any]:
    return [item.run_id for item in deadlines.list_overdue(clock.now()).items]


@pytest.mark.django_db
def test_runs_24_overdue(time: Any) -> None:
    run, _fence, _lease = limited()
    claimed = kit.run_of(kit.task("claimed", timeout_ms=1_000))
    kit.claimed(kit.worker(2), claimed)
    time.advance(999)
    assert overdue() == []
    time.advance(1)
    assert overdue() == [run.pk]
    before = kit.fresh(run).version
    jobs.request_timeouts({})
    found = kit.fresh(run)
    assert (found.cancel_reason, found.cancel_requested_at, found.status) == (
        "timeout",
        clock.now(),
        "running",
    )
    assert overdue() == [] and found.version == before + 1
    told = RunEvent.objects.get(run=run, type="run.cancel_requested")
    assert (told.actor_type, told.actor_id, told.payload["reason"]) == ("reconciler", "deadline", "timeout")
    jobs.request_timeouts({})
    assert kit.fresh(run).version == found.version and kit.fresh(claimed).cancel_requested_at is None
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_24_a_stop_that_came_first_stays(time: Any) -> None:
    run, _fence, _lease = limited()
    services.request_cancel(kit.grant("run.stop"), run.pk)
    time.advance(5_000)
    assert overdue() == []
    jobs.request_timeouts({})
    assert kit.fresh(run).cancel_reason == "user"


@pytest.mark.django_db
def test_runs_23_24_pages_of_the_overdue(time: Any) -> None:
    runs = [limited(name)[0] for name in ("a", "b", "c")]
    time.advance(1_000)
    first = deadlines.list_overdue(clock.now(), limit=2)
    assert [item.run_id for item in first.items] == [run.pk for run in runs[:2]] and first.truncated
    last = deadlines.list_overdue(clock.now(), limit=2, after=first.next_cursor)
    assert [item.run_id for item in last.items] == [runs[2].pk]
    # Unlike the list of stops, this one says where to go on only where there is more.
    assert (last.truncated, last.next_cursor) == (False, None)
    assert deadlines.request_timeouts(limit=2) is not None
    assert overdue() == [runs[2].pk]
    jobs.request_timeouts({})
    assert overdue() == []
    for limit in (0, 129):
        with pytest.raises(InvalidInput):
            deadlines.list_overdue(clock.now(), limit=limit)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("timeout", "timed_out", "EXECUTION_TIMED_OUT"),
        ("user", "cancelled", "EXECUTION_CANCELLED"),
        ("policy", "cancelled", "EXECUTION_CANCELLED"),
    ],
)
def test_runs_25_the_request_decides_the_end(time: Any, reason: str, status: str, code: str) -> None:
    run, fence, lease = limited()
    time.advance(1_000)
    if reason == "timeout":
        jobs.request_timeouts({})
    else:
        services.request_cancel(kit.grant("run.stop"), run.pk, reason=reason)
    time.advance(50)
    kit.finish(fence, lease, 0)
    ended, attempt = kit.fresh(run), kit.attempt_of(run)
    assert (ended.status, attempt.status, ended.error_code) == (status, status, code)
    kit.check_history(run)


@pytest.mark.django_db
def test_runs_25_shim_and_server_agree(time: Any) -> None:
    """Who notices first makes no difference to the end."""
    ends = []
    for name, server_first in (("server", True), ("shim", False)):
        run, fence, lease = limited(name)
        time.advance(1_000)
        if server_first:
            jobs.request_timeouts({})
        kit.finish(fence, lease, 143, cause="deadline")
        found = kit.fresh(run)
        ends.append((found.status, found.cancel_reason, found.error_code))
        assert kit.events(run).count("run.cancel_requested") == 1
    assert ends[0] == ends[1] == ("timed_out", "timeout", "EXECUTION_TIMED_OUT")


@pytest.mark.django_db
def test_a_script_that_kept_its_limit_is_not_timed_out_by_a_late_report(time: Any) -> None:
    """No session lived to say so before the deadline passed; its receipt proves that it was over in time."""
    run, fence, lease = limited()
    time.advance(900)
    finished = clock.now()
    time.advance(10_000)
    jobs.request_timeouts({})
    assert kit.fresh(run).cancel_reason == "timeout"
    kit.finish(fence, lease, 0, finished_at=finished)
    assert kit.fresh(run).status == "succeeded" and kit.attempt_of(run).status == "succeeded"
    assert finished + timedelta(milliseconds=100) == kit.attempt_of(run).deadline_at
