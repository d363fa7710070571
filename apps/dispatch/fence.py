"""The fence of a worker session and of the leases it holds (runs.md §3.7, §6.2)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from apps.core import canonical
from apps.dispatch.models import RunDispatchLease, Worker


@dataclass(frozen=True)
class WorkerFence:
    """Which session speaks: a restarted worker has a new session and a higher generation."""

    worker_id: str
    session_id: str
    generation: int

    @classmethod
    def of(cls, worker: Worker) -> WorkerFence:
        return cls(worker.pk, worker.session_id, worker.generation)


@dataclass(frozen=True)
class LeaseFence:
    """All that the holder of a lease must know to write; the token stays out of logs."""

    attempt_id: UUID
    run_id: UUID
    worker: WorkerFence
    lease_generation: int
    version: int
    acquired_at: datetime
    expires_at: datetime
    token: str = field(repr=False)

    def key(self) -> tuple[UUID, str, str, int, int, str, str]:
        """What KEY_COLUMNS must hold in every write: the lease stands, and it is this one."""
        worker = self.worker
        return (
            self.attempt_id, worker.worker_id, worker.session_id, worker.generation, self.lease_generation,
            self.token, "leased",
        )  # fmt: skip

    def renewed(self, expires_at: datetime) -> LeaseFence:
        """The fence after one more write of the lease."""
        return replace(self, version=self.version + 1, expires_at=expires_at)

    def offer_id(self) -> str:
        """Stable for one lease generation; the token is not part of it (runs.md §6.6)."""
        worker = self.worker
        return canonical.domain_digest(
            "qinglong-run-dispatch-offer-v1", str(self.attempt_id), str(self.lease_generation),
            worker.worker_id, worker.session_id, str(worker.generation),
        )  # fmt: skip


# The status is among them because, as a literal in a condition, it has PostgreSQL go through all live leases.
KEY_COLUMNS = [
    "attempt_id", "worker_id", "worker_session_id", "worker_generation", "lease_generation", "lease_token",
    "status",
]  # fmt: skip


def of_lease(lease: RunDispatchLease) -> LeaseFence:
    """The fence that a stored lease asks for."""
    worker = WorkerFence(lease.worker_id, lease.worker_session_id, lease.worker_generation)
    return LeaseFence(
        lease.attempt_id, lease.run_id, worker, lease.lease_generation, lease.version, lease.acquired_at,
        lease.expires_at, lease.lease_token,
    )  # fmt: skip


def difference(lease: RunDispatchLease | None, fence: LeaseFence, *, version: int | None) -> str | None:
    """The first reason why the fence does not open the lease, expiry aside; None when it does."""
    if lease is None:
        return "missing"
    if lease.run_id != fence.run_id:
        return "run_mismatch"
    checks = [
        ("worker_mismatch", lease.worker_id == fence.worker.worker_id),
        ("worker_session_mismatch", lease.worker_session_id == fence.worker.session_id),
        ("worker_generation_mismatch", lease.worker_generation == fence.worker.generation),
        ("lease_generation_mismatch", lease.lease_generation == fence.lease_generation),
        ("lease_token_mismatch", hmac.compare_digest(lease.lease_token, fence.token)),
        ("version_mismatch", version is None or lease.version == version),
    ]
    return next((reason for reason, right in checks if not right), None)
