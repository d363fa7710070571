"""Whether what is due is carried out (core.health, core.metrics)."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from apps.core import clock, health, metrics
from apps.core.health import Sentence
from apps.core.metrics import Gauge
from apps.triggers.queries import next_fire


def lateness_s() -> float:
    """By how much the oldest due trigger is late."""
    oldest = next_fire()
    return 0.0 if oldest is None else max(0.0, (clock.now() - oldest).total_seconds())


def overdue() -> Sentence | None:
    """Whether a trigger has been due for long: no scheduler, or one that cannot do its work."""
    late = lateness_s()
    if late < settings.ALERTS.late_s:
        return None
    return format_lazy(
        _(
            "A schedule has been due for {n} s and has not started anything: the scheduler does not run or cannot "
            "do its work. Its log says why; what was missed is made good or on record."
        ),
        n=int(late),
    )


def gauges() -> Iterator[Gauge]:
    """One query."""
    yield Gauge.one("schedule_late_seconds", "By how much the oldest due schedule is late.", lateness_s())


health.register("due_triggers", overdue)
metrics.register("triggers", gauges)
