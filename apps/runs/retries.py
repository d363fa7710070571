"""When a run is tried again, as pure rules (runs.md §10, api.md "Task")."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.core import clock
from apps.core.streams import Actor
from apps.runs.machine import Change, Failure
from apps.runs.models import Run, RunAttempt, RunRetryPolicy

NEVER_STARTED = "RECOVERY_NEVER_STARTED"
# What keeps a node from letting scripts go may be the run itself: at some point it is no accident any more.
NEVER_STARTED_MAX = 3
LOST_SCHEDULED = Failure("RUN_LOST_RETRY_SCHEDULED")
LOST_DISABLED = Failure("RUN_LOST_RETRY_DISABLED")
LOST_UNSAFE = Failure("RUN_LOST_RETRY_UNSAFE")
LOST_EXHAUSTED = Failure("RUN_LOST_RETRY_EXHAUSTED")
LOST_CANCELLED = Failure("RUN_CANCELLED_DURING_LOST_RECOVERY")
FAILURE_SCHEDULED = Failure("RUN_FAILURE_RETRY_SCHEDULED")
FAILURE_EXHAUSTED = Failure("RUN_FAILURE_RETRY_EXHAUSTED")
_DOUBLINGS = 15


@dataclass(frozen=True)
class Retries:
    """A run's policy and what of it is used up.

    `never_started` attempts were queued anew because their script was provably never let go; they do not count,
    except the one with which that came to an end. `wanted`: the task is enabled, and neither it nor its project
    is archived.
    """

    policy: RunRetryPolicy
    attempt: int
    never_started: int = 0
    wanted: bool = True

    @property
    def tries(self) -> int:
        """How many attempts count."""
        return self.attempt - min(self.never_started, NEVER_STARTED_MAX - 1)

    @property
    def exhausted(self) -> bool:
        """Whether there was the last one."""
        return self.tries >= self.policy.max_attempts

    def delay(self) -> timedelta:
        """How long the next attempt waits after this one's end."""
        policy = self.policy
        wait = policy.backoff_base_ms * 2 ** min(self.tries - 1, _DOUBLINGS)
        return timedelta(milliseconds=min(policy.backoff_max_ms, wait))

    def takes(self, exit_code: int) -> bool:
        """Whether a failure with this exit code is one that is tried again."""
        policy = self.policy
        codes = policy.retry_exit_codes
        return (
            policy.retry_on_failure
            and policy.max_attempts > 1
            and self.wanted
            and (not codes or exit_code in codes)
        )


def fail(
    change: Change,
    at: datetime,
    actor: Actor,
    retries: Retries | None,
    *,
    exit_code: int,
    failure: Failure,
    dedupe_key: str,
) -> None:
    """Ends a run whose attempt failed, or has it wait for the next one."""
    if retries is None or not retries.takes(exit_code):
        change.move_run("failed", at, actor, failure=failure, dedupe_key=dedupe_key)
    elif retries.exhausted:
        change.move_run("failed", at, actor, failure=FAILURE_EXHAUSTED, dedupe_key=dedupe_key)
    else:
        wait(change, at, actor, retries, at + retries.delay(), FAILURE_SCHEDULED, dedupe_key)


def after_loss(run: Run, retries: Retries | None) -> tuple[str, Failure]:
    """Where a lost run goes: `cancelled`, `failed`, or `retry_wait`; the first rule that fits (runs.md §10.2)."""
    if run.cancel_requested_at is not None:
        return "cancelled", LOST_CANCELLED
    if retries is None or not retries.policy.retry_on_lost or retries.policy.max_attempts <= 1:
        return "failed", LOST_DISABLED
    if retries.policy.safety == "unknown":
        return "failed", LOST_UNSAFE
    if retries.exhausted:
        return "failed", LOST_EXHAUSTED
    return "retry_wait", LOST_SCHEDULED


def wait(
    change: Change,
    at: datetime,
    actor: Actor,
    retries: Retries,
    next_attempt_at: datetime,
    failure: Failure,
    dedupe_key: str,
) -> None:
    """Has a run wait for its next attempt, without its place."""
    told = {
        "attempt": retries.attempt,
        "max_attempts": retries.policy.max_attempts,
        "safety": retries.policy.safety,
        "next_attempt_at_ms": clock.to_ms(next_attempt_at),
    }
    change.move_run(
        "retry_wait", at, actor, failure=failure, dedupe_key=dedupe_key, payload=told,
        next_attempt_at=next_attempt_at,
    )  # fmt: skip


def follow(change: Change, at: datetime, actor: Actor, dedupe_key: str) -> RunAttempt:
    """The attempt after the run's present one, to be stored; tells of it."""
    before = change.attempt
    assert before is not None
    follower = RunAttempt(
        run=change.run,
        attempt=before.attempt + 1,
        status="claimed",
        executor_type=before.executor_type,
        created_at=at,
    )
    told = {
        "attempt": follower.attempt,
        "executor_type": follower.executor_type,
        "previous_attempt_id": str(before.pk),
    }
    change.tell("attempt.claimed", actor, told, dedupe_key, follower)
    return follower
