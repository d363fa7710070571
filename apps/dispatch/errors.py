"""What dispatch refuses (runs.md §6.2, §16)."""

from __future__ import annotations

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


class CompletionUnauthorized(DomainError):
    code = "completion_unauthorized"
    status = 403


class CompletionSequence(Conflict):
    code = "completion_sequence"


class CompletionState(Conflict):
    code = "completion_state"
