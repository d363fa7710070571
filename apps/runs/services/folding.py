"""Folds the history of old runs: attempts, events and what hangs on them become one summary (architecture.md §9).

The run's row stays. The database lets nothing of a history go while its summary is not there, and takes no summary
of a run that goes on or is held; so the one way past the frozen rows is the one below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from apps.core import bulk, clock, db
from apps.core.db import yielding_transaction
from apps.runs.models import ENDED, Run, RunAttempt, RunEvent, RunRetryPolicy, RunSummary, UncountedRun
from apps.runs.services import holds

BATCH = 8
# Events, so about two batches of runs: a job looks at the clock behind each window.
WINDOW = 64


@dataclass(frozen=True)
class Part:
    """What another app keeps about runs and their attempts.

    `blocks` names those of some runs whose history it still works with; `remove` deletes its rows of these runs and
    attempts, children first; `tell` adds to what is kept of an attempt. Each is a fixed number of statements.
    """

    blocks: Callable[[Sequence[UUID]], set[UUID]]
    remove: Callable[[Sequence[UUID], Sequence[UUID]], None]
    tell: Callable[[Sequence[UUID]], Mapping[UUID, Mapping[str, Any]]] = lambda _attempt_ids: {}


@dataclass(frozen=True)
class Folded:
    """A run whose history was folded just now, and how many rows that were."""

    run_id: UUID
    project_id: str
    finished_at: datetime
    rows: int


@dataclass(frozen=True)
class Window:
    """Runs with a history older than the rest, and where the next window begins (None = at the start again)."""

    run_ids: list[UUID]
    after: UUID | None


_parts: dict[str, Part] = {}


def register(name: str, part: Part) -> None:
    """Adds what an app keeps; called when it is made ready."""
    _parts[name] = part


def window(cutoff: datetime, after: UUID | None = None, size: int = WINDOW) -> Window:
    """The next runs in the order of their events: those are gone of folded runs, so no index and no flag is needed."""
    rows = RunEvent.objects.order_by("id")
    if after is not None:
        rows = rows.filter(pk__gt=after)
    found = list(rows.values_list("id", "run_id", "created_at")[:size])
    runs = list(dict.fromkeys(run_id for _pk, run_id, created_at in found if created_at <= cutoff))
    more = len(found) == size and found[-1][2] <= cutoff
    return Window(runs, found[-1][0] if more else None)


@yielding_transaction
def fold(run_ids: Iterable[UUID], cutoff: datetime) -> list[Folded]:
    """Folds those of the runs that ended at `cutoff` or before and that nobody needs; at most BATCH at a time."""
    wanted = sorted(set(run_ids))[:BATCH]
    runs = {
        run.pk: run
        for run in db.skip_locked(
            Run.objects.filter(pk__in=wanted, status__in=ENDED, finished_at__lte=cutoff).order_by("id")
        )
    }
    kept = _kept(sorted(runs))
    chosen = [run for pk, run in sorted(runs.items()) if pk not in kept]
    if not chosen:
        return []
    now = clock.now()
    chosen_ids = [run.pk for run in chosen]
    attempts = _attempts(chosen_ids)
    attempt_ids = [attempt.pk for run_id in chosen_ids for attempt in attempts[run_id]]
    told: dict[UUID, dict[str, Any]] = defaultdict(dict)
    for _name, part in sorted(_parts.items()):
        for attempt_id, values in part.tell(attempt_ids).items():
            told[attempt_id].update(values)
    events = _count_events(chosen_ids)
    summaries = [_summary(run, attempts[run.pk], events.get(run.pk, 0), told, now) for run in chosen]
    db.take_writer()
    RunSummary.objects.bulk_create(summaries)
    for _name, part in sorted(_parts.items()):
        part.remove(chosen_ids, attempt_ids)
    bulk.delete_rows(RunRetryPolicy, "run_id", chosen_ids)
    bulk.delete_rows(RunEvent, "run_id", chosen_ids)
    bulk.delete_rows(RunAttempt, "run_id", chosen_ids)
    return [
        Folded(
            run.pk, run.project_id, run.finished_at or cutoff, events.get(run.pk, 0) + len(attempts[run.pk])
        )
        for run in chosen
    ]


def _kept(run_ids: Sequence[UUID]) -> set[UUID]:
    """Runs that somebody needs, that a part still works with, that wait for a retry, or that folded before."""
    if not run_ids:
        return set()
    kept = holds.held(run_ids)
    for part in _parts.values():
        kept |= part.blocks(run_ids)
    for model in (RunSummary, UncountedRun):
        kept |= set(model.objects.filter(run_id__in=run_ids).values_list("run_id", flat=True))
    waiting = RunRetryPolicy.objects.filter(run_id__in=run_ids, next_attempt_at__isnull=False)
    live = RunAttempt.objects.filter(run_id__in=run_ids).exclude(status__in=ENDED)
    return kept | set(waiting.values_list("run_id", flat=True)) | set(live.values_list("run_id", flat=True))


def _attempts(run_ids: Sequence[UUID]) -> dict[UUID, list[RunAttempt]]:
    found: dict[UUID, list[RunAttempt]] = defaultdict(list)
    for attempt in RunAttempt.objects.filter(run_id__in=run_ids).order_by("run_id", "attempt"):
        found[attempt.run_id].append(attempt)
    return found


def _count_events(run_ids: Sequence[UUID]) -> dict[UUID, int]:
    where, params = bulk.among(RunEvent, "run_id", run_ids)
    rows = bulk.select_later(
        f"SELECT run_id, COUNT(*) FROM {RunEvent._meta.db_table} WHERE {where} GROUP BY run_id", params
    )()
    return {Run._meta.pk.to_python(pk): count for pk, count in rows}


def _summary(
    run: Run,
    attempts: Sequence[RunAttempt],
    events: int,
    told: Mapping[UUID, Mapping[str, Any]],
    now: datetime,
) -> RunSummary:
    tries = [
        {
            "attempt": attempt.attempt,
            "status": attempt.status,
            "worker": attempt.worker_id,
            "started_at_ms": clock.to_ms(attempt.started_at) if attempt.started_at else None,
            "finished_at_ms": clock.to_ms(attempt.finished_at) if attempt.finished_at else None,
            "exit_code": attempt.exit_code,
            "error_code": attempt.error_code,
            **told.get(attempt.pk, {}),
        }
        for attempt in attempts
    ]
    return RunSummary(
        run=run,
        attempts=attempts[-1].attempt if attempts else 0,
        events=events,
        exit_code=attempts[-1].exit_code if attempts else None,
        log_bytes=sum(int(each.get("log_bytes", 0)) for each in tries),
        tries=tries,
        folded_at=now,
    )
