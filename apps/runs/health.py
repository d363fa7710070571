"""What runs have to tell to whoever watches from outside (core.metrics)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Sum

from apps.core import clock, metrics
from apps.core.metrics import Gauge
from apps.projects.models import Project
from apps.runs.models import ProjectHourTotal

ENDS = ("succeeded", "failed", "cancelled", "timed_out", "lost")


def gauges() -> Iterator[Gauge]:
    """One query, over the totals of 24 hours."""
    since = clock.now() - timedelta(hours=24)
    # By project: that is how totals are indexed.
    rows = ProjectHourTotal.objects.filter(project_id__in=Project.objects.values("pk"), hour__gt=since)
    found: dict[str, float | None] = dict.fromkeys(ENDS, 0.0)
    found |= dict(rows.values_list("status").annotate(n=Sum("runs")).order_by())
    yield Gauge.by("runs_ended_day", "Runs that ended within 24 hours, by how they ended.", "status", found)


metrics.register("runs", gauges)
