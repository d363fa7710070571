"""What can be wrong with a change of a run (runs.md §4.3, §16)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, DomainError, Gone, InvalidInput, NotFound


class RunNotFound(NotFound):
    pass


class InvalidTransition(Conflict):
    """The state machine has no such edge; `extra` names from and to."""

    code = "invalid_transition"
    message = _("The run cannot go from its state to that one.")


class InvalidMetadata(DomainError):
    """Data that does not belong to this transition, or is out of bounds: a programming error."""

    code = "invalid_metadata"


class InvalidTimestamp(DomainError):
    code = "invalid_timestamp"


class AttemptConflict(Conflict):
    """The attempt was not as read although its run was: nothing is written."""

    code = "attempt_conflict"


class RunEnded(Conflict):
    code = "run_ended"
    message = _("The run has ended.")


class RunNotEnded(Conflict):
    code = "run_not_ended"
    message = _("The run has not ended yet.")


class InvalidRetryPolicy(InvalidInput):
    """The task's rule is one that no run may get (runs.md §3.4)."""

    code = "invalid_run_retry_policy"


class RetryTargetInconsistent(Conflict):
    """A run that waits to be tried again without what that takes: for a person to look at (runs.md §10.2)."""

    code = "run_lost_retry_target_inconsistent"


class RevisionChanged(Conflict):
    """The task is no longer what a start was approved for."""

    code = "task_revision_changed"
    message = _("The task was changed meanwhile.")


class TaskDisabled(Conflict):
    code = "task_disabled"
    message = _("The task is disabled; enable it first.")


class TaskArchived(Conflict):
    code = "task_archived"
    message = _("The task is archived.")


class IdempotencyKeyReused(Conflict):
    code = "idempotency_key_reused"
    message = _("This Idempotency-Key started something else before.")


class IdempotencyKeyInvalid(InvalidInput):
    code = "idempotency_key_invalid"
    message = _("An Idempotency-Key has 1 to 255 characters without control characters.")


class InputTooLarge(InvalidInput):
    code = "input_too_large"
    status = 413
    message = _("Input and arguments together may have at most 64 KiB.")


class ConcurrencySkipped(Conflict):
    """`extra["skip"]` is the id of the record."""

    code = "concurrency_skipped"
    message = _("The task is running already and skips starts meanwhile.")


class HistoryRetained(Gone):
    """Attempts and events of an old run were folded into its summary."""

    code = "history_retained"
    message = _("The details of this run were folded into its summary by the retention rule.")
