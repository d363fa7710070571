"""What is called a problem, from when on, and what is said about it."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.test import Client
from django.utils.translation import override

from apps.core import clock, control, health, wakeups, watchdogs
from apps.core.jobs import CONTROL
from apps.core.models import ControlJob
from tests.conftest import Time

HOUR = 3_600
GIB = 1024**3


def samples(*free: int) -> list[watchdogs.Sample]:
    return [(1_000_000 + HOUR * number, each) for number, each in enumerate(free)]


def test_a_disk_that_fills_evenly() -> None:
    falling = samples(*(50 * GIB - number * GIB for number in range(24)))
    assert watchdogs.full_in(falling, floor=0) == pytest.approx(27 * HOUR)
    assert watchdogs.full_in(falling, floor=7 * GIB) == pytest.approx(20 * HOUR)


@pytest.mark.parametrize(
    "free", [[9] * 30, list(range(30)), [], [9, 8, 7], [30] * 20 + [10] * 9, [10] * 5 + [99] + [10] * 20]
)
def test_what_does_not_fill_or_says_too_little(free: list[int]) -> None:
    """A steady disk, one that empties, too few samples, one large file, one passing one."""
    assert watchdogs.full_in(samples(*free), floor=0) is None


def test_a_jump_in_between_does_not_hide_the_trend() -> None:
    chance = random.Random(7)
    falling = [100 * GIB - number * GIB + chance.randrange(GIB // 2) for number in range(48)]
    falling[20:] = [free + 5 * GIB for free in falling[20:]]
    assert watchdogs.full_in(samples(*falling), floor=0) == pytest.approx(falling[-1] / GIB * HOUR, rel=0.3)


def test_what_is_full_already() -> None:
    assert watchdogs.full_in(samples(*(100 - 5 * number for number in range(20))), floor=50) == 0.0


def test_samples_are_kept_few(time: Time) -> None:
    cursor: control.Cursor = {}
    for _ in range(watchdogs.SAMPLES + 5):
        time.advance(watchdogs.SAMPLE_MS)
        cursor = watchdogs.sample_disk(cursor)
    assert {len(kept) for kept in cursor.values()} == {watchdogs.SAMPLES}
    assert cursor["home"][-1][0] == int(clock.now().timestamp())


@pytest.mark.django_db
def test_the_disk_is_said_to_be_full_in_days(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watchdogs.disk_filling() is None
    monkeypatch.setattr(control, "_jobs", {watchdogs.DISK_JOB: control._jobs[watchdogs.DISK_JOB]})
    control.enrol(clock.now())
    free = 60 * GIB
    for _ in range(20):
        free -= GIB // 4
        monkeypatch.setattr(watchdogs, "_free", lambda _path, free=free: free)
        time.advance(watchdogs.SAMPLE_MS)
        control.run_due(clock.now())
    assert watchdogs.disk_filling() is None
    for _ in range(20):
        free -= GIB
        monkeypatch.setattr(watchdogs, "_free", lambda _path, free=free: free)
        time.advance(watchdogs.SAMPLE_MS)
        control.run_due(clock.now())
    said = watchdogs.disk_filling()
    assert said is not None and "full in about" in str(said)
    with override("zh-hans"):
        assert str(said).isascii() is False


@pytest.mark.django_db
def test_a_disk_that_fills_within_hours_is_said_before_the_days_are_known(
    time: Time, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr(control, "_jobs", {watchdogs.SOON_JOB: control._jobs[watchdogs.SOON_JOB]})
    control.enrol(clock.now())
    free = 60 * GIB
    for number in range(8):
        assert watchdogs.disk_filling_soon() is None or number >= watchdogs.SOON_SAMPLES_MIN
        free -= GIB
        monkeypatch.setattr(watchdogs, "_free", lambda _path, free=free: free)
        time.advance(watchdogs.SOON_MS)
        control.run_due(clock.now())
    said = watchdogs.disk_filling_soon()
    # 52 GiB at 12 GiB an hour.
    assert said is not None and "in about 4 h" in str(said) and watchdogs.disk_filling() is None
    with override("zh-hans"):
        assert str(said).isascii() is False
    health.forget()
    assert "disk_filling_soon" in client.get("/readyz").json()["warnings"]
    gauge = next(one for one in watchdogs.gauges() if one.name == "disk_full_soon_in_seconds")
    assert gauge.values["home"] == pytest.approx(52 / 12 * HOUR, rel=0.05)


@pytest.mark.django_db
def test_jobs_that_are_late_and_jobs_that_fail(time: Time) -> None:
    control.enrol(clock.now())
    name = control.jobs()[0].name
    time.advance(180_000)
    assert watchdogs.late_jobs() is None
    time.advance(1_000)
    assert name in str(watchdogs.late_jobs())
    control._claim(name, "somebody")
    assert name not in str(watchdogs.late_jobs()).replace(",", "").split(), "one under way is not late"
    assert watchdogs.failing_jobs() is None
    ControlJob.objects.filter(name=name).update(failures=3)
    ControlJob.objects.create(name="gone.job", due_at=clock.now(), failures=9)
    assert name in str(watchdogs.failing_jobs()) and "gone.job" not in str(watchdogs.failing_jobs())


@pytest.mark.django_db
def test_housekeeping_that_stopped(time: Time) -> None:
    assert "has run yet" in str(watchdogs.scheduler())
    ControlJob.objects.create(name="job", due_at=clock.now(), last_started_at=clock.now())
    time.advance(180_000)
    assert watchdogs.scheduler() is None
    time.advance(1_000)
    assert "181" in str(watchdogs.scheduler())


@pytest.mark.django_db
def test_a_cluster_that_answers_nothing(time: Time) -> None:
    wakeups.ring(CONTROL)
    time.advance(44_000)
    assert watchdogs.control_cluster() is None
    time.advance(1_000)
    assert CONTROL in str(watchdogs.control_cluster())
    wakeups.answer(CONTROL)
    assert watchdogs.control_cluster() is None


@pytest.mark.django_db
def test_low_and_full(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, low, full in ((2 * GIB, False, False), (GIB - 1, True, False), (64 * 1024**2 - 1, False, True)):
        monkeypatch.setattr(watchdogs, "_free", lambda _path, free=free: free)
        assert (watchdogs.disk_low() is not None, watchdogs.disk() is not None) == (low, full)


@pytest.mark.django_db
def test_every_problem_has_a_code_and_words_in_both_languages() -> None:
    """Warnings fail nothing, failures come first; nothing but a sentence in the reader's language is said."""
    ControlJob.objects.create(
        name="job", due_at=clock.now(), last_started_at=clock.now() - timedelta(hours=1)
    )
    found = health.problems()
    assert "scheduler" in [problem.code for problem in found if problem.failing]
    assert [problem.failing for problem in found] == sorted((p.failing for p in found), reverse=True)
    for problem in found:
        english = str(problem.sentence)
        with override("zh-hans"):
            assert str(problem.sentence) != english, problem.code
