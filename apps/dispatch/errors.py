"""What dispatch refuses (runs.md §6.2, §16)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, Corrupt, DomainError, InvalidInput, NotFound


class LeaseFenceRejected(Conflict):
    """The caller's fence is not the lease's; `reason` names the first difference. Stop local work."""

    code = "lease_fence_rejected"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason=reason)


class LeaseDurationInvalid(InvalidInput):
    code = "lease_duration_invalid"


class ExpiryTargetInconsistent(Corrupt):
    code = "expiry_target_inconsistent"


class WorkerNotFound(NotFound):
    code = "worker_not_found"


class NodeNotFound(NotFound):
    code = "node_not_found"


class NodeDraining(Conflict):
    """A worker cannot take runs again while its whole node takes none."""

    code = "node_draining"
    message = _("Its node takes no new runs; resume the node.")


class CompletionUnauthorized(DomainError):
    code = "completion_unauthorized"
    status = 403


class CompletionSequence(Conflict):
    code = "completion_sequence"


class CompletionState(Conflict):
    code = "completion_state"


class CancellationCommandInvalid(InvalidInput):
    """A bound of a claim or a result of a stop's delivery was not kept; nothing was read (runs.md §7.3, §7.4)."""

    code = "cancellation_command_invalid"


class CancellationBindingConflict(Conflict):
    """The delivery of the run's stop is bound to another attempt for ever."""

    code = "cancellation_binding_conflict"


class CancellationFenceRejected(Conflict):
    """Somebody else claimed the delivery since: the caller drops its claim, nothing of it is written."""

    code = "cancellation_fence_rejected"


class StopNotOpen(Conflict):
    """The run has no stop that waits for a person's decision."""

    code = "stop_not_open"
    message = _("There is no stop of this run that waits for a decision.")


class NothingEscaped(Conflict):
    """The attempt named no process that outlived its stop."""

    code = "nothing_escaped"
    message = _("No process is known to have outlived the stop of this run.")


class ReceiptJournalConflict(Conflict):
    """The journal has no row of the attempt, or one that names another place of its receipt."""

    code = "receipt_journal_conflict"


class EnvironmentTooLarge(InvalidInput):
    """More than a process can be given; carries `names`, the biggest variables with their sizes."""

    code = "environment_too_large"
    message = _("The environment is larger than a process can be given.")
