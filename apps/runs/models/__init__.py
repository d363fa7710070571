"""Runs, their attempts and everything that happened to them (runs.md §3)."""

from apps.runs.models.alone import AloneStart
from apps.runs.models.attempt import ACTIVE_ATTEMPT, AttemptStatus, RunAttempt
from apps.runs.models.event import ACTOR_TYPES, RunEvent
from apps.runs.models.hold import PIN, RunHold
from apps.runs.models.run import (
    CANCEL_REASONS,
    ENDED,
    OPEN,
    TRIGGER_TYPES,
    CancelReason,
    Run,
    RunRetryPolicy,
    RunStatus,
    TriggerType,
)
from apps.runs.models.skip import MissedCause, Skip, SkipReason
from apps.runs.models.summary import RunSummary
from apps.runs.models.totals import (
    LastEnd,
    ProjectHourTotal,
    RunHourTotal,
    TaskDayTotal,
    UncountedRun,
    UsualDuration,
)

__all__ = [
    "ACTIVE_ATTEMPT", "ACTOR_TYPES", "CANCEL_REASONS", "ENDED", "OPEN", "PIN", "TRIGGER_TYPES", "AloneStart",
    "AttemptStatus", "CancelReason", "LastEnd", "MissedCause", "ProjectHourTotal", "Run", "RunAttempt",
    "RunEvent", "RunHold", "RunHourTotal", "RunRetryPolicy", "RunStatus", "RunSummary", "Skip", "SkipReason",
    "TaskDayTotal", "TriggerType", "UncountedRun", "UsualDuration",
]  # fmt: skip
