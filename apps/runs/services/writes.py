"""Stores changes of runs: compare-and-set on the run, its attempt behind it, one event per step (runs.md §2, §4.3).

One UPDATE per table and one INSERT for the events, whatever the number of runs: the dispatch loop stores a
whole pass at once, every other service a batch of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from apps.core import bulk, participants
from apps.core.errors import VersionConflict
from apps.core.streams import Stream
from apps.runs.errors import AttemptConflict
from apps.runs.machine import Change
from apps.runs.models import ENDED, Run, RunAttempt, RunEvent, RunRetryPolicy, UncountedRun

CHANGED = "run.changed"
OWNED_ENDED = "run.owned_ended"
_RUN = [
    "version", "event_sequence", "status", "holds_place", "queued_at", "started_at", "finished_at",
    "cancel_requested_at", "cancel_reason", "error_code", "error_summary", "output_ref", "output_code",
]  # fmt: skip
_ATTEMPT = [
    "status", "callback_sequence", "worker_id", "executor_handle", "pid", "log_artifact_id", "deadline_at",
    "callback_token_hash", "started_at", "finished_at", "exit_code", "error_code", "error_summary",
]  # fmt: skip
_of_run = attrgetter(*_RUN)
_of_attempt = attrgetter(*_ATTEMPT)


class RunEvents(Stream):
    """The stream of a run."""

    model = RunEvent
    head = "run_id"


def write(changes: Sequence[Change], now: datetime) -> set[UUID]:
    """Stores the changes of distinct runs and returns the ids of those that were still as read.

    A run that somebody changed meanwhile is left alone, with no event. Raises AttemptConflict or DuplicateEvent
    where the transaction must be rolled back. Called inside a write transaction.
    """
    changes = [change for change in changes if change.events]
    won = _update_runs(changes)()
    kept = [change for change in changes if change.run.id in won]
    moved, waits = _update_attempts(kept), _update_policies(kept, now)
    _update_printed(kept)
    if not moved() or not waits():
        raise AttemptConflict
    _tell(kept, now)
    return won


def write_locked(changes: Sequence[Change], now: datetime) -> Callable[[], None]:
    """Stores the changes of runs that were read under their lock, in statements that may travel together.

    What it returns is called at the end and raises AttemptConflict where a row was not as read after all; the
    transaction must then be rolled back.
    """
    changes = [change for change in changes if change.events]
    won = _update_runs(changes)
    moved, waits = _update_attempts(changes), _update_policies(changes, now)
    _update_printed(changes)
    _tell(changes, now)

    def check() -> None:
        if len(won()) != len(changes) or not moved() or not waits():
            raise AttemptConflict

    return check


def write_one(change: Change, now: datetime) -> None:
    """Stores one change; raises VersionConflict with expected and actual version."""
    if change.events and change.run.id not in write([change], now):
        actual = Run.objects.filter(pk=change.run.id).values_list("version", flat=True).first()
        raise VersionConflict(actual, expected_version=change.version)


def _update_runs(changes: Sequence[Change]) -> Callable[[], set[UUID]]:
    rows = [(c.run.id, c.version, *_of_run(c.run)) for c in changes]
    return bulk.update_rows_later(Run, ["id", "version"], _RUN, rows)


def _update_attempts(changes: Sequence[Change]) -> Callable[[], bool]:
    """Whether all attempts were as read; the columns repeat the keys, which are compared with what was read."""
    rows = [
        (c.attempt.id, c.attempt_status, c.attempt_sequence, *_of_attempt(c.attempt))
        for c in changes
        if c.attempt is not None and c.attempt.status != c.attempt_status
    ]
    moved = bulk.update_rows_later(RunAttempt, ["id", "status", "callback_sequence"], _ATTEMPT, rows)
    return lambda: len(moved()) == len(rows)


def _update_printed(changes: Sequence[Change]) -> None:
    """Apart from the other columns: hardly any run prints a secret. Their versions were compared there."""
    rows = [(change.run.id, change.run.secrets_printed) for change in changes if change.printed]
    bulk.update_rows_later(Run, ["id"], ["secrets_printed"], rows)


def _update_policies(changes: Sequence[Change], now: datetime) -> Callable[[], bool]:
    """Whether all runs that begin or cease to wait for another attempt had a policy, which says till when."""
    rows = [
        (c.run.id, c.next_attempt_at, max(now, c.run.created_at))
        for c in changes
        if "retry_wait" in (c.status, c.run.status)
    ]
    moved = bulk.update_rows_later(
        RunRetryPolicy, ["run_id"], ["next_attempt_at", "updated_at"], rows, increment="version"
    )
    return lambda: len(moved()) == len(rows)


def _tell(changes: Sequence[Change], now: datetime) -> None:
    RunEvents.insert([(c.run.id, c.version, c.events) for c in changes], now)
    _note(changes)


def _note(changes: Sequence[Change]) -> None:
    ended = []
    for change in changes:
        run = change.run
        participants.note(CHANGED, run.id)
        if run.status in ENDED and change.status != run.status:  # an event may follow the last state
            ended.append(
                (run.id, run.project_id, run.task_id, run.status, run.finished_at, _worked_ms(change))
            )
            if run.owner_type is not None:
                participants.note(OWNED_ENDED, (run.owner_type, run.owner_id, run.id))
    bulk.insert_rows(
        UncountedRun, ["run_id", "project_id", "task_id", "status", "finished_at", "duration_ms"], ended
    )


def _worked_ms(change: Change) -> int:
    """How long the last attempt of an ended run ran: no time between attempts is anybody's work."""
    attempt = change.attempt
    started, finished = (attempt.started_at, attempt.finished_at) if attempt else (None, None)
    return max(0, int((finished - started).total_seconds() * 1000)) if started and finished else 0
