"""What the database knows about a log (secrets-and-artifacts.md §6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apps.artifacts import facts
from apps.artifacts.errors import MetadataCorrupt
from apps.artifacts.models import ArtifactRetention
from apps.core import clock
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt, RunSummary

EXECUTION_OWNER = "runtime"
EXECUTOR_TYPE = "local_process"


@dataclass(frozen=True)
class Retention:
    """The record of a removed log."""

    disposition: str
    finished_at: datetime
    eligible_at: datetime
    bytes_reclaimed: int
    recorded_at: datetime


@dataclass(frozen=True)
class LogMetadata:
    """The log of one attempt of a run.

    `attempt` (its number), `attempt_id` and `artifact_id` are None while there is no attempt, or none that was
    given a log. `complete` says that no more bytes will come, so a size that is read after it is final.
    `started` says that a process was let go.
    """

    project_id: str
    run_id: UUID
    attempt: int | None
    attempt_id: UUID | None
    artifact_id: str | None
    complete: bool
    started: bool
    retention: Retention | None = None


def find(project_id: str, run_id: UUID, attempt: int | None = None) -> LogMetadata | None:
    """The log of attempt number `attempt` (None = the last one), or None where there is no such thing here.

    Runs of the old panel, other executors and artifacts that are no local log are not found. Raises
    MetadataCorrupt where the stored id is not the id that run and attempt give, or the record of a removal tells of
    something else.
    """
    rows = RunAttempt.objects.filter(
        run_id=run_id, run__project_id=project_id, run__execution_owner=EXECUTION_OWNER
    )
    if attempt is not None:
        rows = rows.filter(attempt=attempt)
    row = rows.select_related("retention").order_by("-attempt").first()
    if row is None:
        return _without_attempt(project_id, run_id, attempt)
    if row.executor_type != EXECUTOR_TYPE:
        return None
    if row.log_artifact_id is not None and not row.log_artifact_id.startswith("local-"):
        return None
    if row.log_artifact_id not in (None, facts.artifact_id(str(run_id), str(row.pk))):
        raise MetadataCorrupt
    return LogMetadata(
        project_id=project_id,
        run_id=run_id,
        attempt=row.attempt,
        attempt_id=row.pk,
        artifact_id=row.log_artifact_id,
        complete=row.status not in ACTIVE_ATTEMPT,
        started=row.started_at is not None,
        retention=retention_of(row),
    )


def retention_of(attempt: RunAttempt) -> Retention | None:
    """The record of the removal of an attempt's files, None while they lie there; raises MetadataCorrupt."""
    row: ArtifactRetention | None = getattr(attempt, "retention", None)
    if row is None:
        return None
    if (
        row.log_artifact_id != attempt.log_artifact_id
        or attempt.finished_at is None
        or row.finished_at != attempt.finished_at
        or not row.finished_at <= row.eligible_at <= row.recorded_at
        or row.bytes_reclaimed < 0
        or (row.disposition == ArtifactRetention.Disposition.ALREADY_ABSENT and row.bytes_reclaimed)
        or row.disposition not in ArtifactRetention.Disposition.values
    ):
        raise MetadataCorrupt
    return Retention(row.disposition, row.finished_at, row.eligible_at, row.bytes_reclaimed, row.recorded_at)


def _without_attempt(project_id: str, run_id: UUID, attempt: int | None) -> LogMetadata | None:
    run = Run.objects.filter(pk=run_id, project_id=project_id, execution_owner=EXECUTION_OWNER).first()
    if run is None:
        return None
    summary = RunSummary.objects.filter(pk=run_id).first() if run.ended else None
    if summary is not None:
        return _folded(run, summary, attempt)
    if attempt is not None:
        return None
    return LogMetadata(project_id, run_id, None, None, None, complete=run.ended, started=False)


def _folded(run: Run, summary: RunSummary, attempt: int | None) -> LogMetadata | None:
    """The log of an attempt that only the summary tells of: it went before its history did."""
    number = attempt or summary.attempts
    found = next((each for each in summary.tries if each.get("attempt") == number), None)
    if found is None:
        return None if attempt else LogMetadata(run.project_id, run.pk, None, None, None, True, False)
    retention = None
    if found.get("log") and run.finished_at is not None:
        removed_at = clock.from_ms(int(found["log_removed_at_ms"]))
        ended = found.get("finished_at_ms")
        finished_at = run.finished_at if ended is None else clock.from_ms(int(ended))
        retention = Retention(
            found["log"], finished_at, finished_at, int(found.get("log_bytes", 0)), removed_at
        )
    return LogMetadata(run.project_id, run.pk, number, None, None, True, False, retention)
