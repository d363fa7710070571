"""History that is older than it is kept: runs fold, records of starts that did not happen go; each with its bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from apps.artifacts.models import Artifact, ArtifactRetention, Removal, UnlistedRun
from apps.artifacts.retention import records, rules
from apps.artifacts.retention.records import Item
from apps.core import bulk, clock
from apps.core.db import write_transaction, yielding_transaction
from apps.core.pace import Pace
from apps.runs.models import RunAttempt
from apps.runs.services import folding, forgetting
from apps.runs.services.folding import Folded


def fold(after: UUID | None = None, pace: Pace | None = None) -> tuple[UUID | None, int]:
    """Folds what may go of one window of runs: where the next window begins, and how many runs were folded."""
    pace = pace or Pace()
    cutoff = rules.cutoff(clock.now(), rules.instance().history_ms)
    found = folding.window(cutoff, after)
    left, folded = found.run_ids, 0
    while left:
        size = pace.size("fold", folding.BATCH)
        batch, left = left[:size], left[size:]
        done = len(_fold(batch, cutoff))
        pace.after("fold", done)
        folded += done
    return found.after, folded


@yielding_transaction
def _fold(run_ids: Sequence[UUID], cutoff: datetime) -> list[Folded]:
    folded = folding.fold(run_ids, cutoff)
    records.bill(
        (Item(run.project_id, Removal.HISTORY, run.finished_at, 1, run.rows) for run in folded), clock.now()
    )
    return folded


def forget_skips(pace: Pace | None = None) -> int:
    """Removes some old records of starts that did not happen; how many."""
    pace = pace or Pace()
    gone = _forget_skips(pace.size("skips", forgetting.BATCH))
    pace.after("skips", gone)
    return gone


@write_transaction
def _forget_skips(limit: int) -> int:
    cutoff = rules.cutoff(clock.now(), rules.instance().history_ms)
    gone = forgetting.forget_skips(cutoff, limit)
    records.bill((Item(project_id, Removal.SKIPS, at) for project_id, at in gone), clock.now())
    return len(gone)


def blocks(run_ids: Sequence[UUID]) -> set[UUID]:
    """Runs with a log that was not removed, or that is not listed yet: a log outlives no history."""
    unlisted = UnlistedRun.objects.filter(pk__in=run_ids).values_list("run_id", flat=True)
    kept = RunAttempt.objects.filter(
        run_id__in=run_ids, log_artifact_id__startswith="local-", retention__isnull=True
    )
    return set(unlisted) | set(kept.values_list("run_id", flat=True))


def remove(_run_ids: Sequence[UUID], attempt_ids: Sequence[UUID]) -> None:
    """Tombstones and the names of collected files go with their attempts; the summary tells of them."""
    bulk.delete_rows(Artifact, "attempt_id", attempt_ids)
    bulk.delete_rows(ArtifactRetention, "attempt_id", attempt_ids)


def tell(attempt_ids: Sequence[UUID]) -> Mapping[UUID, Mapping[str, Any]]:
    """What became of each log."""
    rows = ArtifactRetention.objects.filter(pk__in=attempt_ids)
    return {
        row.pk: {
            "log": row.disposition,
            "log_bytes": row.bytes_reclaimed,
            "log_removed_at_ms": clock.to_ms(row.recorded_at),
        }
        for row in rows
    }


PART = folding.Part(blocks, remove, tell)
