"""Puts what a lost attempt left on record, behind its end (decisions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from apps.artifacts import collection
from apps.artifacts.collected import Kept
from apps.artifacts.models import Artifact
from apps.core import bulk, clock, db
from apps.core.db import write_transaction
from apps.core.streams import Actor
from apps.dispatch import remains
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.remains import Remains
from apps.runs.machine import Change
from apps.runs.models import Run, RunAttempt, RunEvent
from apps.runs.services import writes
from apps.tasks.models import TaskExecutionRevision

PAGE = 64
ACTOR = Actor("reconciler", "remains")


def waiting(node_id: str) -> list[Remains]:
    """Lost attempts of a node whose journal is not closed and whose folders are still there; three queries at most."""
    rows = CompletionReceiptJournal.objects.filter(node_id=node_id, state="pending", attempt__status="lost")
    return of([row.attempt for row in rows.select_related("attempt").order_by("updated_at", "pk")[:PAGE]])


def of(attempts: Sequence[RunAttempt]) -> list[Remains]:
    """What of some attempts is to be looked after; two queries where there is any."""
    found = remains.of(attempts)
    if not found:
        return []
    runs = {row.pk: row for row in Run.objects.filter(pk__in={one.attempt.run_id for one in found})}
    rows = TaskExecutionRevision.objects.filter(
        task_id__in={str(run.task_id) for run in runs.values()},
        task_revision__in={run.task_revision for run in runs.values()},
        uses_secrets=False,
    )
    without = set(rows.values_list("project_id", "task_id", "task_revision"))
    return [
        replace(one, secret=(run.project_id, str(run.task_id), run.task_revision) not in without)
        for one in found
        if (run := runs[one.attempt.run_id])
    ]


@write_transaction
def record(attempt_id: UUID, kept: Kept) -> bool:
    """Writes the files of a lost attempt and an event that tells of them; False where that was done, or is nothing."""
    if not kept.files and not kept.left_out:
        return False
    of = RunAttempt.objects.filter(pk=attempt_id).values("run_id")
    run = db.lock(Run.objects.filter(pk__in=of)).first()
    attempt = RunAttempt.objects.filter(pk=attempt_id, status="lost").first()
    key = f"attempt-files:{attempt_id}"
    if run is None or attempt is None or RunEvent.objects.filter(run=run, dedupe_key=key).exists():
        return False
    now = clock.now()
    rows = collection.rows(run, attempt, kept, now)
    bulk.insert_or_update(Artifact, collection.COLUMNS, rows, "ON CONFLICT DO NOTHING")
    change = Change(run, attempt)
    payload = {"attempt_id": str(attempt.pk), "attempt": attempt.attempt, "files": kept.fact()}
    change.tell("attempt.files_found", ACTOR, payload, key)
    writes.write_one(change, now)
    return True
