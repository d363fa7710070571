"""The state machine of runs and attempts, as pure rules (runs.md §4).

A `Change` collects what one transaction does to one run: each step checks its edge and its data, moves the rows
in memory and tells the event. `writes.write` stores many changes at once, or nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apps.core import clock, ids
from apps.core.streams import Actor, NewEvent
from apps.runs.errors import InvalidMetadata, InvalidTimestamp, InvalidTransition, RunNotFound
from apps.runs.models import CANCEL_REASONS, ENDED, Run, RunAttempt

RUN_EDGES: dict[str, frozenset[str]] = {
    "created": frozenset({"queued", "cancelled"}),
    "queued": frozenset({"dispatching", "cancelled", "timed_out"}),
    "dispatching": frozenset({"running", "retry_wait", "failed", "cancelled", "timed_out", "lost"}),
    "running": frozenset(
        {"waiting_approval", "retry_wait", "succeeded", "failed", "cancelled", "timed_out", "lost"}
    ),
    "waiting_approval": frozenset({"running", "cancelled", "timed_out"}),
    "retry_wait": frozenset({"queued", "cancelled", "timed_out"}),
    "lost": frozenset({"retry_wait", "queued", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "timed_out": frozenset(),
}
ATTEMPT_EDGES: dict[str, frozenset[str]] = {
    "claimed": frozenset({"starting", "cancelled", "lost"}),
    "starting": frozenset({"running", "failed", "cancelled", "timed_out", "lost"}),
    "running": frozenset({"succeeded", "failed", "cancelled", "timed_out", "lost"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "timed_out": frozenset(),
    "lost": frozenset(),
}
ATTEMPT_ENDED = frozenset(state for state, targets in ATTEMPT_EDGES.items() if not targets)
_HEX = "0123456789abcdef"
RUN_ERROR_TARGETS = frozenset({"retry_wait", "failed", "cancelled", "timed_out", "lost"})
ATTEMPT_ERROR_TARGETS = frozenset({"failed", "cancelled", "timed_out", "lost"})


@dataclass(frozen=True)
class Failure:
    """Why something ended badly: a code ≤ 128 and a short fixed sentence ≤ 1,024 characters."""

    code: str
    summary: str | None = None


@dataclass(eq=False)
class Change:
    """Steps of one run within one transaction; `run` and `attempt` are moved in memory as they are taken."""

    run: Run
    attempt: RunAttempt | None = None
    events: list[NewEvent] = field(default_factory=list)
    next_attempt_at: datetime | None = None
    printed: bool = False

    def __post_init__(self) -> None:
        self.version = self.run.version
        self.status = self.run.status
        if self.attempt is not None:
            if self.attempt.run_id != self.run.id:
                raise RunNotFound
            self.attempt_status = self.attempt.status
            self.attempt_sequence = self.attempt.callback_sequence

    @property
    def next_version(self) -> int:
        """The version the run has after one more step."""
        return self.version + len(self.events) + 1

    def move_run(
        self,
        to: str,
        at: datetime,
        actor: Actor,
        *,
        failure: Failure | None = None,
        dedupe_key: str | None = None,
        payload: dict[str, Any] | None = None,
        event: str | None = None,
        next_attempt_at: datetime | None = None,
    ) -> None:
        """Takes the run along one edge; raises InvalidTransition, InvalidTimestamp or InvalidMetadata.

        `next_attempt_at` belongs to `retry_wait`, and to nothing else.
        """
        run = self.run
        if to not in RUN_EDGES[run.status]:
            raise InvalidTransition(**{"from": run.status, "to": to})
        _check_time(at, run.created_at, run.started_at)
        _check_failure(failure, to in RUN_ERROR_TARGETS)
        if (next_attempt_at is not None) != (to == "retry_wait"):
            raise InvalidMetadata
        self._tell(
            event or f"run.{to}",
            actor,
            {
                "from_status": run.status,
                "to_status": to,
                "version": self.next_version,
                **({"error_code": failure.code} if failure else {}),
                **(payload or {}),
            },
            dedupe_key or f"run-transition:{self.next_version - 1}:{to}",
        )
        run.status = to
        self.next_attempt_at = next_attempt_at
        if failure is not None:
            run.error_code, run.error_summary = failure.code, failure.summary
        elif to in ("queued", "succeeded"):
            run.error_code = run.error_summary = None
        if to == "queued":
            run.queued_at = at
        elif to == "running" and run.started_at is None:
            run.started_at = at
        if to in ENDED:
            run.finished_at = at
        if to in ENDED or to in ("lost", "retry_wait"):
            run.holds_place = False

    def move_attempt(
        self,
        to: str,
        at: datetime,
        actor: Actor,
        *,
        failure: Failure | None = None,
        dedupe_key: str | None = None,
        payload: dict[str, Any] | None = None,
        executor_handle: str | None = None,
        pid: int | None = None,
        log_artifact_id: str | None = None,
        worker_id: str | None = None,
        deadline_at: datetime | None = None,
        callback_token_hash: str | None = None,
        callback_sequence: int | None = None,
        exit_code: int | None = None,
    ) -> None:
        """Takes the attempt along one edge, with the data that belongs there (runs.md §4.3)."""
        attempt = self._attempt()
        if self.status in ENDED or to not in ATTEMPT_EDGES[attempt.status]:
            raise InvalidTransition(**{"from": attempt.status, "to": to})
        _check_time(at, attempt.created_at, attempt.started_at)
        _check_failure(failure, to in ATTEMPT_ERROR_TARGETS)
        execution = (executor_handle, pid, log_artifact_id, worker_id)
        _check_execution(to, execution)
        _check_start(attempt, to, at, deadline_at, callback_token_hash)
        _check_end(attempt, to, callback_sequence, exit_code)
        attempt_id = ids.text(attempt.id)
        told: dict[str, Any] = {
            "attempt_id": attempt_id,
            "attempt": attempt.attempt,
            "from_status": attempt.status,
            "to_status": to,
            "version": self.next_version,
        }
        if exit_code is not None:
            told["exit_code"] = exit_code
        if failure is not None:
            told["error_code"] = failure.code
        if deadline_at is not None:
            told["deadline_at_ms"] = clock.to_ms(deadline_at)
        if callback_sequence is not None:
            told["callback_sequence"] = callback_sequence
        key = dedupe_key or f"attempt-transition:{attempt_id}:{self.next_version - 1}:{to}"
        self._tell(f"attempt.{to}", actor, {**told, **(payload or {})}, key)
        _store(attempt, executor_handle=executor_handle, pid=pid, log_artifact_id=log_artifact_id,
               worker_id=worker_id, deadline_at=deadline_at, callback_token_hash=callback_token_hash,
               callback_sequence=callback_sequence, exit_code=exit_code)  # fmt: skip
        attempt.status = to
        if failure is not None:
            attempt.error_code, attempt.error_summary = failure.code, failure.summary
        if to == "running":
            attempt.started_at = at
        if to in ATTEMPT_ENDED:
            attempt.finished_at = at

    def request_cancel(
        self, reason: str, at: datetime, actor: Actor, *, note: str = "", dedupe_key: str | None = None
    ) -> None:
        """Writes down that the run is to be stopped; its status stays (runs.md §5.3)."""
        if reason not in CANCEL_REASONS or self.run.cancel_requested_at is not None:
            raise InvalidMetadata
        attempt = self._attempt()
        self._tell(
            "run.cancel_requested",
            actor,
            {
                "status": self.run.status,
                "reason": reason,
                "requested_at_ms": clock.to_ms(at),
                "version": self.next_version,
                **({"note": note} if note else {}),
            },
            dedupe_key or f"run-cancel-request:{attempt.id}",
        )
        self.run.cancel_requested_at = at
        self.run.cancel_reason = reason

    def tell_printed(self, names: Sequence[str], actor: Actor) -> None:
        """Notes whose secrets the attempt printed; of many the event names the first 64."""
        if not names:
            return
        attempt = self._attempt()
        self.run.secrets_printed = "\n".join(dict.fromkeys([*self.run.printed, *names]))
        self.printed = True
        self.tell(
            "attempt.secrets_printed",
            actor,
            {"attempt_id": ids.text(attempt.id), "attempt": attempt.attempt, "secrets": list(names)[:64]},
            f"secrets-printed:{attempt.id}",
        )

    def tell(
        self,
        type_: str,
        actor: Actor,
        payload: dict[str, Any],
        dedupe_key: str | None,
        attempt: RunAttempt | None = None,
    ) -> None:
        """An event without a change of state; of another attempt where one is given."""
        self._tell(type_, actor, {**payload, "version": self.next_version}, dedupe_key, attempt)

    def _tell(
        self,
        type_: str,
        actor: Actor,
        payload: dict[str, Any],
        dedupe_key: str | None,
        attempt: RunAttempt | None = None,
    ) -> None:
        about = attempt or self.attempt
        attempt_id = about.id if about is not None else None
        self.events.append(NewEvent(type_, actor, payload, dedupe_key, attempt_id))
        self.run.version = self.run.event_sequence = self.version + len(self.events)

    def _attempt(self) -> RunAttempt:
        if self.attempt is None:
            raise RunNotFound
        return self.attempt


def _store(attempt: RunAttempt, **values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            setattr(attempt, name, value)


def _check_time(at: datetime, *not_before: datetime | None) -> None:
    for earlier in not_before:
        if earlier is not None and at < earlier:
            raise InvalidTimestamp


def _check_failure(failure: Failure | None, allowed: bool) -> None:
    if failure is None:
        return
    if not allowed or not 1 <= len(failure.code) <= 128 or len(failure.summary or "") > 1024:
        raise InvalidMetadata


def _check_execution(to: str, data: tuple[str | None, int | None, str | None, str | None]) -> None:
    handle, pid, log_artifact_id, _worker = data
    if to not in ("starting", "running") and any(value is not None for value in data):
        raise InvalidMetadata
    if handle is not None and not 1 <= len(handle) <= 2048:
        raise InvalidMetadata
    if pid is not None and pid < 1:
        raise InvalidMetadata
    if log_artifact_id is not None and not 1 <= len(log_artifact_id) <= 36:
        raise InvalidMetadata


def _check_start(
    attempt: RunAttempt, to: str, at: datetime, deadline_at: datetime | None, token_hash: str | None
) -> None:
    if deadline_at is not None and (
        to != "starting" or deadline_at <= at or attempt.deadline_at not in (None, deadline_at)
    ):
        raise InvalidMetadata
    if token_hash is not None and (
        to != "starting"
        or len(token_hash) != 64
        or token_hash.strip(_HEX)
        or attempt.callback_token_hash not in (None, token_hash)
    ):
        raise InvalidMetadata


def _check_end(attempt: RunAttempt, to: str, sequence: int | None, exit_code: int | None) -> None:
    if (sequence is not None or exit_code is not None) and to not in ATTEMPT_ENDED:
        raise InvalidMetadata
    if sequence is not None and sequence != attempt.callback_sequence + 1:
        raise InvalidMetadata
    if exit_code is not None and not 0 <= exit_code <= 255:
        raise InvalidMetadata
