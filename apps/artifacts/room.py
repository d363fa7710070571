"""Whether there is room for the log of another run, and a folder to keep it in (core.health, core.metrics)."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from apps.artifacts import store, tallies
from apps.core import health, metrics
from apps.core.health import Sentence
from apps.core.metrics import Gauge
from apps.tasks.execution import DEFAULT_LOG_QUOTA

_MEBIBYTE = 1_048_576


def room() -> Sentence | None:
    """Whether a task with the usual limit of its log would be started."""
    short = store.minimum_free() + DEFAULT_LOG_QUOTA
    if store.capacity().available >= short:
        return None
    return format_lazy(
        _(
            "Less than {n} MB are free at {path}: runs do not start, so that logs under way can be written. Make room, "
            "keep fewer logs, or lower QINGLONG_DISK_RESERVE_MB."
        ),
        n=short // _MEBIBYTE,
        path=str(store.root()),
    )


def folder() -> Sentence | None:
    """Whether the folder of the logs is one, and nobody else's to look into."""
    path = Path(store.root())
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        return format_lazy(
            _("{path} is no folder of its own: logs are neither written nor read."), path=str(path)
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        return format_lazy(_("Others may read {path}; use chmod go-rwx."), path=str(path))
    return None


def gauges() -> Iterator[Gauge]:
    """One query."""
    found = tallies.today()
    yield Gauge.by("log_faults_day", "Logs of this day that were cut by their limit, or have gaps.", "fault", {
        "quota": found["quota_hit"], "incomplete": found["incomplete"]
    })  # fmt: skip
    yield Gauge.one(
        "missing_artifact_reads_day",
        "Reads of this day that found no file, and no rule that removed it.",
        found["missing_read"],
    )
    available = store.capacity().available
    yield Gauge.one(
        "log_room_bytes", "Free bytes beyond the reserve.", float(max(0, available - store.minimum_free()))
    )


def register() -> None:
    """Makes checks and figures known."""
    health.register("log_room", room)
    health.register("log_folder", folder)
    metrics.register("artifacts", gauges)
