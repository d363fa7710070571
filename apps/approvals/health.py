"""What approvals have to tell to whoever watches from outside (core.metrics, approvals.md §11)."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Count, Min

from apps.approvals.models import ApprovalRequest
from apps.core import clock, metrics
from apps.core.metrics import Gauge


def gauges() -> Iterator[Gauge]:
    """One query, over what is open: at most a day's requests."""
    now = clock.now()
    rows = ApprovalRequest.objects.filter(
        state__in=["pending", "approved"], expires_at__gt=now, lapse__isnull=True
    )
    found = {
        state: (count, oldest)
        for state, count, oldest in rows.values_list("state")
        .annotate(n=Count("pk"), oldest=Min("requested_at"))
        .order_by()
    }
    counts: dict[str, float | None] = dict.fromkeys(("pending", "approved"), 0.0)
    ages: dict[str, float | None] = dict(counts)
    for state, (count, oldest) in found.items():
        counts[state], ages[state] = float(count), (now - oldest).total_seconds()
    yield Gauge.by(
        "approvals_open", "Requests that wait for a decision, or to be carried out.", "state", counts
    )
    yield Gauge.by("approvals_oldest_seconds", "How long the oldest of them has waited.", "state", ages)


metrics.register("approvals", gauges)
