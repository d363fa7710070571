"""What the database knows about a log (secrets-and-artifacts.md §6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apps.artifacts import facts
from apps.artifacts.errors import MetadataCorrupt
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt

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
    # Room for the record that the retention rule will write; until then no log is ever removed.
    retention: Retention | None = None


def find(project_id: str, run_id: UUID, attempt: int | None = None) -> LogMetadata | None:
    """The log of attempt number `attempt` (None = the last one), or None where there is no such thing here.

    Runs of the old panel, other executors and artifacts that are no local log are not found. Raises
    MetadataCorrupt where the stored id is not the id that run and attempt give.
    """
    rows = RunAttempt.objects.filter(
        run_id=run_id, run__project_id=project_id, run__execution_owner=EXECUTION_OWNER
    )
    if attempt is not None:
        rows = rows.filter(attempt=attempt)
    row = rows.order_by("-attempt").first()
    if row is None:
        return None if attempt is not None else _without_attempt(project_id, run_id)
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
    )


def _without_attempt(project_id: str, run_id: UUID) -> LogMetadata | None:
    run = Run.objects.filter(pk=run_id, project_id=project_id, execution_owner=EXECUTION_OWNER).first()
    if run is None:
        return None
    return LogMetadata(project_id, run_id, None, None, None, complete=run.ended, started=False)
