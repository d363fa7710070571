"""How an end becomes known: one way, from a receipt, live or after a crash (runs.md §8.4)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.artifacts.collected import Kept
from apps.core import canonical, clock, ids
from apps.core.streams import Actor
from apps.dispatch.errors import CompletionSequence, CompletionState, CompletionUnauthorized
from apps.dispatch.receipts import Receipt
from apps.runs import retries as retry_rules
from apps.runs.errors import RunNotFound
from apps.runs.machine import ATTEMPT_ENDED, Change, Failure
from apps.runs.models import ENDED, Run, RunAttempt
from apps.runs.retries import NEVER_STARTED, Retries

FAILED = Failure("EXECUTION_FAILED")
TIMED_OUT = Failure("EXECUTION_TIMED_OUT")
CANCELLED = Failure("EXECUTION_CANCELLED")
START_FAILED = "EXECUTOR_START_FAILED"
ACTOR = Actor("executor", "completion-receipt")


@dataclass(frozen=True)
class End:
    """A receipt with what lay beside it: why the tree was stopped, what the script left, whose secrets it printed."""

    receipt: Receipt
    cause: str | None = None
    output: Any = None
    has_output: bool = False
    output_code: str | None = None
    proof: Mapping[str, Any] | None = None
    limit: str | None = None
    files: Kept | None = None
    log: Mapping[str, bool] | None = None
    printed: tuple[str, ...] = ()

    @property
    def told(self) -> dict[str, Any] | None:
        """What the attempt's last event says of the stop, of a limit that was met, of files and of gaps in the log."""
        said = {
            "cause": self.cause,
            "stopped": self.proof and dict(self.proof),
            "limit": self.limit,
            "files": self.files and self.files.fact(),
            "log": self.log and dict(self.log),
        }
        return {name: value for name, value in said.items() if value} or None


def outcome(run: Run, exit_code: int) -> tuple[str, Failure | None]:
    """How attempt and run end; a requested cancellation overrides any exit code."""
    if run.cancel_requested_at is not None:
        return ("timed_out", TIMED_OUT) if run.cancel_reason == "timeout" else ("cancelled", CANCELLED)
    return ("succeeded", None) if exit_code == 0 else ("failed", FAILED)


def authorise(run: Run, attempt: RunAttempt, receipt: Receipt) -> None:
    """Raises unless the receipt is this attempt's own word."""
    named = (ids.text(run.id), ids.text(attempt.id))
    if named != (receipt.run_id, receipt.attempt_id) or attempt.run_id != run.id:
        raise RunNotFound
    stored = attempt.callback_token_hash or ""
    if (
        run.execution_owner != "runtime"
        or len(stored) != 64
        or not hmac.compare_digest(stored, canonical.sha256(receipt.token))
    ):
        raise CompletionUnauthorized


def apply(
    run: Run, attempt: RunAttempt, end: End, now: datetime, retries: Retries | None = None
) -> Change | None:
    """The steps that end attempt and run, None when they were taken before.

    A failure that `retries` takes has the run wait for its next attempt; what this one left as output is dropped.
    A `starting` attempt passes through `running` first: its script ran, although nobody could say so in time.
    Raises CompletionUnauthorized, CompletionSequence, CompletionState or RunNotFound; then the receipt is to be
    put aside.
    """
    receipt = end.receipt
    authorise(run, attempt, receipt)
    if attempt.status in ATTEMPT_ENDED:
        if attempt.callback_sequence != receipt.callback_sequence:
            raise CompletionSequence
        if attempt.exit_code != receipt.exit_code:
            raise CompletionState
        return None
    if receipt.callback_sequence != attempt.callback_sequence + 1:
        raise CompletionSequence
    if run.status in ENDED or attempt.status == "claimed":
        raise CompletionState
    try:
        started, finished = clock.from_ms(receipt.started_at_ms), clock.from_ms(receipt.finished_at_ms)
    except ValueError:
        # A receipt may hold numbers that no calendar does.
        raise CompletionState from None
    change = Change(run, attempt)
    begin(change, max(run.created_at, attempt.created_at, started))
    change.tell_printed(end.printed, ACTOR)
    known = [run.created_at, attempt.created_at, finished]
    at = max([*known, *(time for time in (run.started_at, attempt.started_at) if time is not None)])
    if end.cause == "deadline" and run.cancel_requested_at is None:
        change.request_cancel("timeout", at, ACTOR)
    to, failure = ("succeeded", None) if _in_time(run, attempt, end) else outcome(run, receipt.exit_code)
    if to == "failed" and end.limit is not None:
        failure = Failure(FAILED.code, f"the limit {end.limit} was met")
    key = f"primary-completion:{ids.text(attempt.id)}:{receipt.callback_sequence}"
    change.move_attempt(
        to, at, ACTOR, failure=failure, dedupe_key=f"{key}:attempt",
        callback_sequence=receipt.callback_sequence, exit_code=receipt.exit_code,
        payload=end.told,
    )  # fmt: skip
    if to == "failed" and failure is not None:
        retry_rules.fail(
            change, at, ACTOR, retries, exit_code=receipt.exit_code, failure=failure, dedupe_key=f"{key}:run"
        )
    else:
        change.move_run(to, at, ACTOR, failure=failure, dedupe_key=f"{key}:run")
    if run.status != "retry_wait":
        run.output_code = end.output_code
    return change


def _in_time(run: Run, attempt: RunAttempt, end: End) -> bool:
    """Whether a success that nobody could report in time was one before the limit the server then asked to keep."""
    return (
        run.cancel_reason == "timeout"
        and end.cause is None
        and end.receipt.exit_code == 0
        and attempt.deadline_at is not None
        and end.receipt.finished_at_ms < clock.to_ms(attempt.deadline_at)
    )


def begin(change: Change, at: datetime) -> None:
    """Brings attempt and run to `running` if they are not there."""
    attempt = change.attempt
    assert attempt is not None
    actor = Actor("worker", attempt.worker_id)
    if attempt.status == "starting":
        change.move_attempt("running", at, actor)
    if change.run.status == "dispatching":
        change.move_run("running", at, actor)


def fail_start(change: Change, now: datetime, code: str, worker_id: str) -> None:
    """Ends an attempt that could not be started, and its run (runs.md §6.5)."""
    attempt = change.attempt
    assert attempt is not None
    actor = Actor("worker", worker_id)
    if attempt.status == "claimed":
        change.move_attempt("starting", now, actor, worker_id=worker_id)
    to, failure = outcome(change.run, 1)
    if to == "failed":
        failure = Failure(START_FAILED, code)
    change.move_attempt(to, now, actor, failure=failure, callback_sequence=attempt.callback_sequence + 1)
    change.move_run(to, now, actor, failure=failure)


def requeue(change: Change, at: datetime, actor: Actor) -> RunAttempt:
    """Ends an attempt whose script was provably never let go; the run keeps its place and queues anew.

    Returns the attempt that follows, to be stored. Safe whatever the retry safety, for nothing has run.
    """
    run, attempt = change.run, change.attempt
    assert attempt is not None
    held = run.holds_place
    lose(change, at, NEVER_STARTED, actor)
    change.move_run("queued", at, actor)
    run.holds_place = held
    return retry_rules.follow(change, at, actor, f"attempt-claimed:{attempt.attempt + 1}")


def lose(change: Change, now: datetime, code: str, actor: Actor, keys: tuple[str, str] | None = None) -> None:
    """Ends an attempt of which nothing more will be heard; its run is lost."""
    failure = Failure(code)
    payload = {"worker_id": change.attempt.worker_id} if change.attempt and change.attempt.worker_id else None
    change.move_attempt(
        "lost", now, actor, failure=failure, dedupe_key=keys[0] if keys else None, payload=payload
    )
    change.move_run("lost", now, actor, failure=failure, dedupe_key=keys[1] if keys else None)
