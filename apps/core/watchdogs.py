"""What is looked at on the ground floor: housekeeping, its cluster, and the room on disk (core.health)."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path

from django.conf import settings
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from apps.core import clock, control, health, metrics, wakeups
from apps.core.health import Sentence
from apps.core.jobs import CONTROL
from apps.core.metrics import Gauge
from apps.core.models import ControlJob, Wakeup

FREE_BYTES_MIN = 64 * 1024**2
FREE_BYTES_LOW = 1024**3
FROZEN = timedelta(seconds=45)
FAILURES = 3

SAMPLE_MS = 3_600_000
SAMPLES = 72
# Fewer say nothing of a day: people and their schedules have hours.
SAMPLES_MIN = 12
DISK_JOB = "core.sample_disk"

# Beside the days: what fills within hours shows in minutes.
SOON_MS = 300_000
SOON_SAMPLES = 36
SOON_SAMPLES_MIN = 6
SOON_JOB = "core.sample_disk_soon"

Sample = tuple[int, int]
"""Unix seconds and free bytes."""


def scheduler() -> Sentence | None:
    """Whether control jobs are run: that takes the scheduler, the queue and the control cluster."""
    newest = max((row.last_started_at for row in _rows() if row.last_started_at is not None), default=None)
    if newest is None:
        return _("No housekeeping has run yet: scheduler and control cluster must run; `up` starts both.")
    silent = int((clock.now() - newest).total_seconds())
    if silent <= settings.ALERTS.sweep_s:
        return None
    return format_lazy(
        _(
            "No housekeeping for {n} s: the scheduler, the queue or the control cluster stands still. Its log says "
            "why; starting `up` again brings it back."
        ),
        n=silent,
    )


def late_jobs() -> Sentence | None:
    """Whether each control job is taken up when it is due."""
    late = [name for name, by in _lateness(clock.now()).items() if by > settings.ALERTS.sweep_s]
    if not late:
        return None
    return format_lazy(
        _("Housekeeping is late: {names}. Look at the log of the control cluster."), names=", ".join(late)
    )


def failing_jobs() -> Sentence | None:
    """Whether a control job has failed several times in a row; it is tried ever more seldom."""
    if not (found := [row.name for row in _known_rows() if row.failures >= FAILURES]):
        return None
    return format_lazy(
        _("Housekeeping fails again and again: {names}. The log of the control cluster names the error."),
        names=", ".join(found),
    )


def control_cluster() -> Sentence | None:
    """Whether the control cluster answers its ring or is at a job."""
    if CONTROL not in deaf() or control.under_way(clock.now()):
        return None
    return frozen(CONTROL)


@health.shared
def deaf() -> list[str]:
    """Clusters that have not answered for so long that a new start, which takes seconds, has not helped."""
    return wakeups.deaf(clock.now() - FROZEN)


def frozen(cluster: str) -> Sentence:
    """The sentence about a cluster that answers nothing."""
    return format_lazy(
        _(
            "The cluster {name} answers nothing. `up` starts a frozen one anew by itself; where it runs alone, "
            "start it again."
        ),
        name=cluster,
    )


def disk() -> Sentence | None:
    """Whether there is room for logs and the database."""
    low = [str(path) for path in places().values() if _free(path) < FREE_BYTES_MIN]
    if not low:
        return None
    return format_lazy(
        _("Less than 64 MiB are free at {paths}: logs are cut and writes may fail. Make room now."),
        paths=", ".join(low),
    )


def disk_low() -> Sentence | None:
    """Whether room is about to become scarce."""
    low = [str(path) for path in places().values() if FREE_BYTES_MIN <= _free(path) < FREE_BYTES_LOW]
    if not low:
        return None
    return format_lazy(_("Less than 1 GiB is free at {paths}. Make room soon."), paths=", ".join(low))


def disk_filling() -> Sentence | None:
    """Whether the disk will be full within the time that settings name, as its samples go."""
    left = [by for by in _filling().values() if by <= settings.ALERTS.disk_days * 86_400]
    if not left:
        return None
    days = max(1, round(min(left) / 86_400))
    return format_lazy(
        _(
            "The disk will be full in about {n} d if it fills as in the last days. Keep fewer logs or add room."
        ),
        n=days,
    )


def disk_filling_soon() -> Sentence | None:
    """Whether the disk will be full within the hours that settings name, as the last hours go."""
    left = [by for by in _filling_soon().values() if by <= settings.ALERTS.disk_hours * 3_600]
    if not left:
        return None
    return format_lazy(
        _(
            "At the present rate the disk will be full in about {n} h, before old logs are due to go. Stop what "
            "writes, keep fewer logs, or add room."
        ),
        n=max(1, round(min(left) / 3_600)),
    )


def places() -> dict[str, Path]:
    """What has to have room, once per file system: the home folder, and logs where they lie elsewhere."""
    found: dict[int, tuple[str, Path]] = {}
    for name, folder in (("home", Path(settings.HOME)), ("logs", Path(settings.LOG_ROOT))):
        if folder.exists():
            found.setdefault(folder.stat().st_dev, (name, folder))
    return dict(found.values())


def sample_disk(cursor: control.Cursor) -> control.Cursor:
    """Adds a sample per place to those kept in the cursor: SAMPLES at most, hourly, so three days."""
    return _sampled(cursor, SAMPLES)


def sample_disk_soon(cursor: control.Cursor) -> control.Cursor:
    """The same every five minutes, for three hours."""
    return _sampled(cursor, SOON_SAMPLES)


def _sampled(cursor: control.Cursor, most: int) -> control.Cursor:
    now = int(clock.now().timestamp())
    return {name: [*cursor.get(name, []), [now, _free(path)]][-most:] for name, path in places().items()}


def full_in(samples: Sequence[Sample], floor: int = FREE_BYTES_MIN, least: int = SAMPLES_MIN) -> float | None:
    """Seconds until less than `floor` bytes are free, or None where free room does not shrink.

    By the median of all slopes between two samples: one large file more or less moves it little.
    """
    if len(samples) < least:
        return None
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in combinations(samples, 2)
        if later[0] > earlier[0]
    ]
    slope = statistics.median(slopes) if slopes else 0.0
    return max(0.0, (samples[-1][1] - floor) / -slope) if slope < 0 else None


def gauges() -> Iterator[Gauge]:
    """Four queries."""
    now = clock.now()
    jobs = _lateness(now)
    failures = dict(ControlJob.objects.filter(name__in=list(jobs)).values_list("name", "failures"))
    yield Gauge.by("control_job_late_seconds", "How long a control job has been due.", "job", jobs)
    yield Gauge.by("control_job_failures", "How often a control job failed in a row.", "job", failures)
    unanswered = {
        row.cluster: 0.0
        if row.answered or row.unanswered_since is None
        else (now - row.unanswered_since).total_seconds()
        for row in Wakeup.objects.order_by("cluster")
    }
    yield Gauge.by("ring_unanswered_seconds", "How long a ring waits for an answer.", "cluster", unanswered)
    usage = {name: shutil.disk_usage(path) for name, path in places().items()}
    free = {name: each.free for name, each in usage.items()}
    yield Gauge.by("disk_free_bytes", "Free bytes where QingLong keeps its files.", "place", free)
    total = {name: each.total for name, each in usage.items()}
    yield Gauge.by("disk_size_bytes", "Size of that file system.", "place", total)
    yield Gauge.by("disk_full_in_seconds", "When it will be full as it fills now.", "place", _filling())
    soon = _filling_soon()
    yield Gauge.by("disk_full_soon_in_seconds", "The same by the last three hours.", "place", soon)


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


@health.shared
def _rows() -> list[ControlJob]:
    return list(ControlJob.objects.order_by("name"))


def _known_rows() -> list[ControlJob]:
    names = {job.name for job in control.jobs()}
    return [row for row in _rows() if row.name in names]


def _lateness(now: datetime) -> dict[str, float]:
    """Seconds by which each known control job is late; one in somebody's hands is not."""
    return {
        row.name: 0.0
        if row.lease_expires_at is not None and row.lease_expires_at > now
        else max(0.0, (now - row.due_at).total_seconds())
        for row in _known_rows()
    }


def _filling() -> dict[str, float]:
    return _forecast(DISK_JOB, SAMPLES_MIN)


def _filling_soon() -> dict[str, float]:
    return _forecast(SOON_JOB, SOON_SAMPLES_MIN)


def _forecast(job: str, least: int) -> dict[str, float]:
    kept: control.Cursor = next((row.cursor for row in _rows() if row.name == job), {})
    found = {name: full_in([(at, free) for at, free in kept.get(name, [])], least=least) for name in places()}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def register() -> None:
    """Makes checks, figures and the job known."""
    health.register("scheduler", scheduler)
    health.register("control_jobs", late_jobs)
    health.register("control_jobs_failing", failing_jobs, failing=False)
    health.register("control_frozen", control_cluster)
    health.register("disk", disk)
    health.register("disk_low", disk_low, failing=False)
    health.register("disk_filling", disk_filling, failing=False)
    health.register("disk_filling_soon", disk_filling_soon, failing=False)
    metrics.register("core", gauges)
    control.register(DISK_JOB, sample_disk, every_ms=SAMPLE_MS)
    control.register(SOON_JOB, sample_disk_soon, every_ms=SOON_MS)
