"""What retention has to tell to whoever watches (core.health, core.metrics)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Sum
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from apps.artifacts.models import Removal, RetentionReceipt, StoredTotal
from apps.artifacts.retention import orphans
from apps.core import clock, health, metrics
from apps.core.health import Sentence
from apps.core.metrics import Gauge
from apps.core.models import ControlJob

JOB = "artifacts.retain"


def _last_round() -> dict[str, Any]:
    found = ControlJob.objects.filter(name=JOB).values_list("cursor", flat=True).first()
    return dict(found or {})


def not_removed() -> Sentence | None:
    """Whether the last round left logs that it should have removed."""
    failed = int(_last_round().get("failed", 0))
    if not failed:
        return None
    return format_lazy(
        _(
            "{n} old logs could not be removed: something else stands where a log belongs, or their folder may not be "
            "written. They are tried again with each round."
        ),
        n=failed,
    )


def unknown_files() -> Sentence | None:
    """Whether there are files that no attempt names."""
    count, size = orphans.waiting()
    if not count:
        return None
    return format_lazy(
        _(
            "Files of {n} attempts that nobody knows lie among the logs ({mb} MB). They are removed a day after they "
            "were found; the command `orphans` names them."
        ),
        n=count,
        mb=round(size / 1_000_000, 1),
    )


def gauges() -> Iterator[Gauge]:
    """Three queries."""
    stored = StoredTotal.objects.aggregate(logs=Sum("logs"), bytes=Sum("bytes"))
    yield Gauge.one("stored_logs", "Logs of ended runs on the disk.", float(stored["logs"] or 0))
    yield Gauge.one("stored_log_bytes", "Their bytes.", float(stored["bytes"] or 0))
    last = _last_round()
    yield Gauge.one("retention_pressure", "Whether the disk was short.", float(bool(last.get("pressure"))))
    yield Gauge.one("retention_failed", "Logs that could not be removed.", float(last.get("failed", 0)))
    rows = RetentionReceipt.objects.filter(day=clock.now().date()).values("rule")
    today = {
        row["rule"]: (float(row["n"]), float(row["size"]))
        for row in rows.annotate(n=Sum("items"), size=Sum("bytes")).order_by()
    }
    removed = {str(rule): today.get(rule, (0.0, 0.0))[0] for rule in Removal.values}
    yield Gauge.by("retention_removed_day", "What rules removed today.", "rule", removed)
    freed = {str(rule): today.get(rule, (0.0, 0.0))[1] for rule in Removal.values}
    yield Gauge.by("retention_reclaimed_bytes_day", "Bytes that they freed.", "rule", freed)


def register() -> None:
    """Makes checks and figures known."""
    health.register("logs_not_removed", not_removed, failing=False)
    health.register("log_orphans", unknown_files, failing=False)
    metrics.register("retention", gauges)
