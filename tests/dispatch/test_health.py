"""What is called a problem of dispatch: a run that nobody takes, a cluster that answers nothing, a silent worker."""

from __future__ import annotations

import pytest
from django.utils.translation import override

from apps.core import clock, health, wakeups
from apps.core.health import Sentence
from apps.dispatch import health as dispatch
from apps.dispatch.models import Worker
from tests.conftest import Time
from tests.runs import kit

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh() -> None:
    health.forget()


def alive(free: int) -> None:
    """The worker shows itself, with so many free slots."""
    ahead = clock.from_ms(clock.now_ms() + 20_000)
    Worker.objects.update(available_slots=free, lease_expires_at=ahead, last_heartbeat_at=clock.now())


def told(wrong: Sentence | None) -> str:
    """In English; said in Chinese too."""
    if wrong is None:
        return ""
    with override("zh-hans"):
        assert not str(wrong).isascii()
    return str(wrong)


def test_d11_a_run_that_nobody_takes(time: Time) -> None:
    """lessons.md D11: whatever froze, the age of the oldest run that could run tells of it."""
    run = kit.run_of(kit.task())
    time.advance(599_000)
    assert dispatch.oldest_run() is None
    time.advance(1_000)
    assert "600 s, and no worker takes runs" in told(dispatch.oldest_run())
    kit.worker(slots=8)
    alive(8)
    assert "although slots are free" in told(dispatch.oldest_run())
    alive(0)
    assert dispatch.oldest_run() is None, "all slots are taken: waiting is as it should be"
    assert "All slots are taken" in told(dispatch.all_busy())
    Worker.objects.update(status="draining")
    assert "no worker takes runs" in told(dispatch.oldest_run())
    Worker.objects.update(status="online")
    alive(8)
    kit.claimed(kit.worker(), run)
    assert dispatch.oldest_run() is None and dispatch.all_busy() is None


def test_the_threshold_is_a_setting(time: Time, settings: object) -> None:
    kit.run_of(kit.task())
    time.advance(30_000)
    assert dispatch.oldest_run() is None
    settings.ALERTS = type(settings.ALERTS)(run_wait_s=30, late_s=120, sweep_s=180, disk_days=7)  # type: ignore[attr-defined]
    assert dispatch.oldest_run() is not None


def test_a_run_that_may_not_run_yet_is_no_problem(time: Time) -> None:
    task = kit.task()
    kit.claimed(kit.worker(), kit.run_of(task))
    assert not kit.run_of(task).holds_place
    time.advance(3_600_000)
    assert dispatch.oldest_run() is None


def test_a_runs_cluster_that_answers_nothing(time: Time) -> None:
    wakeups.ring("runs")
    time.advance(44_000)
    assert dispatch.runs_cluster() is None
    time.advance(1_000)
    assert "cluster runs answers nothing" in told(dispatch.runs_cluster())
    kit.worker()
    assert dispatch.runs_cluster() is None, "a session anywhere finds what was rung for"


def test_silent_workers_are_a_warning(time: Time) -> None:
    for slot in range(1, 6):
        kit.worker(slot)
    assert dispatch.silent_workers() is None
    time.advance(21_000)
    said = told(dispatch.silent_workers())
    assert f"{kit.NODE}:1" in said and f"{kit.NODE}:4" not in said and "…" in said
    found = {problem.code: problem.failing for problem in health.problems()}
    assert found["workers_silent"] is False
    Worker.objects.update(status="offline")
    assert dispatch.silent_workers() is None
