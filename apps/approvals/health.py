"""What approvals have to tell to whoever watches from outside (core.health, core.metrics, approvals.md §11)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Min, QuerySet
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from apps.approvals import queries
from apps.approvals.cycle import STALLED
from apps.approvals.models import (
    ApprovalRequest,
    ApprovedActionExecution,
    ApprovedActionRecoveryControl,
)
from apps.approvals.services.consuming import EXECUTE
from apps.core import clock, health, metrics
from apps.core.health import Sentence
from apps.core.metrics import Gauge
from apps.core.models import ControlJob
from apps.runs.models import Skip
from apps.runs.services import door

# Evidence is written with the effect: what is not there after this will hardly come.
EVIDENCE_S = 600
MANY = 100
UNDER_WAY = ("pending", "leased", "retry_wait", "executing")


def for_people() -> Sentence | None:
    """Whether an action waits for a person to say what became of it."""
    rows = ApprovedActionRecoveryControl.objects.filter(status="manual_required")
    found = len(rows.values_list("pk", flat=True)[:MANY])
    if not found:
        return None
    return format_lazy(
        _(
            "Approved actions whose process died, and of which nobody can tell by themselves what became: {n}. "
            "Look what happened and close them by hand, under Approvals."
        ),
        n=found if found < MANY else f"{MANY}+",
    )


def evidence_missing() -> Sentence | None:
    """Whether evidence of something that was begun stays missing."""
    since = _oldest_without_evidence()
    if since is None or (clock.now() - since).total_seconds() < EVIDENCE_S:
        return None
    return format_lazy(
        _(
            "An approved action was begun {n} min ago, its process died, and there is no evidence of what became of "
            "it. It is not done again; look what happened and close it by hand, under Approvals."
        ),
        n=int((clock.now() - since).total_seconds() // 60),
    )


def not_taken_up() -> Sentence | None:
    """Whether an approved action that is due is carried out."""
    late = timedelta(seconds=settings.ALERTS.sweep_s)
    rows = ApprovedActionExecution.objects.filter(
        eligible_at__lte=clock.now() - late, status__in=["pending", "leased", "retry_wait"]
    )
    if not rows.exists():
        return None
    return format_lazy(
        _(
            "An approved action has been due for more than {n} s and nobody carries it out. Look at the log of the "
            "control cluster."
        ),
        n=settings.ALERTS.sweep_s,
    )


def gauges() -> Iterator[Gauge]:
    """Eight queries, over what is open and the last cycle."""
    now = clock.now()
    requests = ApprovalRequest.objects.filter(
        state__in=["pending", "approved"], expires_at__gt=now, lapse__isnull=True
    )
    counts, ages = _by(requests, "state", "requested_at", ("pending", "approved"), now)
    yield Gauge.by(
        "approvals_open", "Requests that wait for a decision, or to be carried out.", "state", counts
    )
    yield Gauge.by("approvals_oldest_seconds", "How long the oldest of them has waited.", "state", ages)
    yield Gauge.one(
        "approvals_expiring",
        "Requests nobody decided that expire within the minutes of their project's policy.",
        float(queries.expiring(now)),
    )
    yield Gauge.one(
        "approvals_to_file",
        "Due times whose request for approval is still to be filed.",
        float(Skip.objects.filter(filing=door.TO_FILE).count()),
    )
    executions = ApprovedActionExecution.objects.filter(status__in=UNDER_WAY)
    counts, ages = _by(executions, "status", "created_at", UNDER_WAY, now)
    yield Gauge.by("approved_actions_open", "Approved actions that have not ended.", "status", counts)
    yield Gauge.by(
        "approved_actions_oldest_seconds", "How long ago the oldest was handed over.", "status", ages
    )
    controls = ApprovedActionRecoveryControl.objects.filter(status="manual_required")
    counts, ages = _by(controls, "status", "created_at", ("manual_required",), now)
    yield Gauge.one(
        "approved_actions_manual", "Approved actions that only a person can close.", counts["manual_required"]
    )
    since = _oldest_without_evidence()
    yield Gauge.one(
        "approved_actions_evidence_missing_seconds",
        "How long ago the oldest action without evidence was begun.",
        0.0 if since is None else (now - since).total_seconds(),
    )
    yield from _last_cycle()


def _last_cycle() -> Iterator[Gauge]:
    row = ControlJob.objects.filter(name=EXECUTE).first()
    phases: dict[str, dict[str, Any]] = {} if row is None else row.cursor
    yield Gauge.by(
        "approved_actions_phase_seconds",
        "How long a phase of the last cycle took.",
        "phase",
        {name: found["took_ms"] / 1000 for name, found in phases.items()},
    )
    yield Gauge.by(
        "approved_actions_phase_unavailable",
        "What a phase of the last cycle could not move.",
        "phase",
        {name: float(found.get("unavailable", 0)) for name, found in phases.items()},
    )
    yield Gauge.by(
        "approved_actions_phase_stalled",
        "Whether a phase of the last cycle could not go on.",
        "phase",
        {name: float(found["stop"] == STALLED) for name, found in phases.items()},
    )


def _by(
    rows: QuerySet[Any], label: str, since: str, words: tuple[str, ...], now: datetime
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Number and age of the oldest, by a word of ours; one query."""
    counts: dict[str, float | None] = dict.fromkeys(words, 0.0)
    ages: dict[str, float | None] = dict(counts)
    found = rows.values_list(label).annotate(n=Count("pk"), oldest=Min(since)).order_by()
    for word, count, oldest in found:
        counts[word], ages[word] = float(count), (now - oldest).total_seconds()
    return counts, ages


def _oldest_without_evidence() -> datetime | None:
    """When the oldest action passed the barrier whose process is gone and whose evidence was looked for in vain."""
    rows = ApprovedActionRecoveryControl.objects.filter(
        status__in=["armed", "leased"],
        finding_count__gte=1,
        dispatch__status="executing",
        dispatch__lease_expires_at__lte=clock.now(),
    )
    found: datetime | None = rows.order_by("created_at").values_list("created_at", flat=True).first()
    return found


health.register("approvals_manual", for_people, failing=False)
health.register("approvals_evidence", evidence_missing, failing=False)
health.register("approvals_not_taken_up", not_taken_up, failing=False)
metrics.register("approvals", gauges)
