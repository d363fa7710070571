"""Retry by hand: a new run of the same task with the same input, linked to the old one (runs.md §17, api.md)."""

from __future__ import annotations

from uuid import UUID

from apps.projects.policy import Grant
from apps.runs import payloads
from apps.runs.errors import RunNotEnded, RunNotFound
from apps.runs.models import Run
from apps.runs.services.door import Alone
from apps.runs.services.start import Skipped, Started, start_run


def retry_run(
    grant: Grant, run_id: UUID, *, idempotency_key: str | None = None, alone: Alone | None = None
) -> Started | Skipped:
    """Starts the run's task again, as the task is now, with the run's input and arguments.

    Raises RunNotFound, RunNotEnded (a lost run may be retried) and what `start_run` raises.
    """
    run = Run.objects.filter(pk=run_id, project_id=grant.project_id).first()
    if run is None:
        raise RunNotFound
    if not run.ended and run.status != "lost":
        raise RunNotEnded
    given = payloads.open_input(run)
    return start_run(
        grant,
        run.task_id,
        trigger_type="run_manual_retry",
        input=given.input,
        args=given.args,
        priority=run.priority,
        idempotency_key=idempotency_key,
        retry_of=run,
        alone=alone,
    )
