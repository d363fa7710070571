"""Who carries runs out: workers, their leases, stops on their way, receipts to be consumed (runs.md §3.5–3.8)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from apps.core import fields
from apps.runs.models import Run, RunAttempt

LEASE_MIN_MS = 5_000
LEASE_MAX_MS = 600_000


class Node(models.Model):
    """A machine's part of the installation: known by the random id in its own folder, told apart by people by its host.

    `last_heartbeat_at` is its cluster's own; sessions show their lives at their places. A drain stays until it is
    taken back, whatever of the node starts anew. `clock_skew_ms`: how far its clock is ahead of the database's.
    """

    id = models.CharField(primary_key=True, max_length=64, editable=False)
    host = models.CharField(max_length=255)
    labels = models.JSONField(default=dict)
    drain_requested_at = models.DateTimeField(null=True)
    clock_skew_ms = models.BigIntegerField(default=0)
    registered_at = models.DateTimeField()
    last_heartbeat_at = models.DateTimeField()

    class Meta:
        db_table = "nodes"

    def __str__(self) -> str:
        return self.host


class Worker(models.Model):
    """A slot of a node that opens sessions. Fence = id, session id, generation: a new session shuts out the old."""

    class Status(models.TextChoices):
        ONLINE = "online"
        DRAINING = "draining"
        OFFLINE = "offline"

    id = models.CharField(primary_key=True, max_length=128, editable=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="workers", db_index=False)
    roles = models.JSONField(default=list)
    session_id = models.CharField(max_length=36)
    generation = models.IntegerField()
    status = models.CharField(max_length=16, choices=Status)
    drain_requested_at = models.DateTimeField(null=True)
    version = models.IntegerField(default=0)
    capabilities = models.JSONField(default=dict)
    capabilities_hash = models.CharField(max_length=64)
    max_concurrent_runs = models.IntegerField()
    available_slots = models.IntegerField()
    registered_at = models.DateTimeField()
    last_heartbeat_at = models.DateTimeField()
    lease_expires_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "workers"
        indexes = [
            models.Index(fields=["status", "lease_expires_at", "id"], name="worker_liveness"),
            models.Index(fields=["node", "id"], name="worker_node"),
        ]
        constraints = [
            fields.one_of("status", ["online", "draining", "offline"], "worker_status_check"),
            fields.at_least("generation", 1, "worker_generation_check"),
            models.CheckConstraint(
                condition=Q(max_concurrent_runs__gte=1, max_concurrent_runs__lte=1024)
                & Q(available_slots__gte=0, available_slots__lte=F("max_concurrent_runs")),
                name="worker_slots_check",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def place(self) -> int:
        """Its number on its node."""
        return int(self.pk.rpartition(":")[2])

    @property
    def labels(self) -> dict[str, str]:
        """What it offers to runs that need something."""
        found: dict[str, str] = self.capabilities.get("labels", {})
        return found


class RunDispatchLease(models.Model):
    """The right of one worker session to carry one attempt; the raw token never leaves the dispatcher."""

    class Status(models.TextChoices):
        LEASED = "leased"
        RELEASED = "released"
        COMPLETED = "completed"

    class ReleaseReason(models.TextChoices):
        DECLINED = "declined"
        SHUTDOWN = "shutdown"
        START_FAILED = "start_failed"
        CAPACITY_CHANGED = "capacity_changed"
        LEASE_EXPIRED = "lease_expired"

    attempt = models.OneToOneField(
        RunAttempt, on_delete=models.CASCADE, primary_key=True, related_name="lease"
    )
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False)
    status = models.CharField(max_length=16, choices=Status)
    version = models.IntegerField(default=0)
    lease_generation = models.IntegerField()
    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="leases", db_index=False)
    worker_session_id = models.CharField(max_length=36)
    worker_generation = models.IntegerField()
    lease_token = models.CharField(max_length=128, editable=False)
    acquired_at = models.DateTimeField()
    renewed_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)
    release_reason = models.CharField(max_length=32, choices=ReleaseReason, null=True)  # noqa: DJ001
    completed_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "run_dispatch_leases"
        indexes = [
            models.Index(
                fields=["expires_at", "attempt"], condition=Q(status="leased"), name="run_lease_expiry"
            ),
            models.Index(
                fields=["worker", "expires_at", "attempt"],
                condition=Q(status="leased"),
                name="run_lease_worker",
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["lease_token"], name="run_lease_token"),
            fields.at_least("lease_generation", 1, "run_lease_generation_check"),
            models.CheckConstraint(
                condition=Q(acquired_at__lte=F("renewed_at"), renewed_at__lt=F("expires_at")),
                name="run_lease_times_check",
            ),
            models.CheckConstraint(
                condition=Q(
                    status="leased",
                    released_at__isnull=True,
                    release_reason__isnull=True,
                    completed_at__isnull=True,
                )
                | Q(
                    status="released",
                    released_at__isnull=False,
                    release_reason__isnull=False,
                    completed_at__isnull=True,
                )
                | Q(
                    status="completed",
                    completed_at__isnull=False,
                    released_at__isnull=True,
                    release_reason__isnull=True,
                ),
                name="run_lease_status_check",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.attempt_id} g{self.lease_generation} {self.status}"


RESULTS = [
    "termination_requested", "already_exited", "controller_missing", "handle_missing", "dispatch_error",
    "identity_mismatch", "pid_mismatch", "unsupported", "invalid",
]  # fmt: skip


class RunCancellationDispatch(models.Model):
    """The delivery of one run's stop to the one attempt it is bound to (runs.md §3.5, §7).

    `version` is what a writer must have read; `dispatch_count` is the generation of the lease, raised by every claim.
    The raw token never leaves the claim: everything else reads `cancellations.Record`.
    """

    class Status(models.TextChoices):
        PENDING = "pending"
        LEASED = "leased"
        RETRY_WAIT = "retry_wait"
        DISPATCHED = "dispatched"
        BLOCKED = "blocked"

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="cancellation")
    attempt = models.ForeignKey(RunAttempt, on_delete=models.CASCADE, related_name="+", db_index=False)
    status = models.CharField(max_length=32, choices=Status)
    version = models.IntegerField(default=0)
    dispatch_count = models.IntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    lease_owner = models.CharField(max_length=128, null=True)  # noqa: DJ001
    lease_token = models.CharField(max_length=128, null=True, editable=False)  # noqa: DJ001
    lease_expires_at = models.DateTimeField(null=True)
    last_result = models.CharField(max_length=64, null=True)  # noqa: DJ001
    last_dispatched_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "run_cancellation_dispatches"
        indexes = [
            models.Index(fields=["status", "next_attempt_at"], name="run_cancellation_due"),
            models.Index(
                fields=["lease_expires_at"],
                condition=Q(lease_expires_at__isnull=False),
                name="run_cancellation_lease",
            ),
        ]
        constraints = [
            fields.one_of(
                "status",
                ["pending", "leased", "retry_wait", "dispatched", "blocked"],
                "run_cancellation_status_check",
            ),
            fields.one_of("last_result", RESULTS, "run_cancellation_result_check"),
            fields.at_least("version", 0, "run_cancellation_version_check"),
            fields.at_least("dispatch_count", 0, "run_cancellation_count_check"),
            models.CheckConstraint(
                condition=Q(
                    status="leased",
                    lease_owner__isnull=False,
                    lease_token__isnull=False,
                    lease_expires_at__isnull=False,
                    next_attempt_at__isnull=True,
                )
                | Q(
                    status__in=["pending", "retry_wait"],
                    lease_owner__isnull=True,
                    lease_token__isnull=True,
                    lease_expires_at__isnull=True,
                    next_attempt_at__isnull=False,
                )
                | Q(
                    status__in=["dispatched", "blocked"],
                    lease_owner__isnull=True,
                    lease_token__isnull=True,
                    lease_expires_at__isnull=True,
                    next_attempt_at__isnull=True,
                    last_result__isnull=False,
                ),
                name="run_cancellation_consistent",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.status}"


class EscapedProcesses(models.Model):
    """The wish of a person that processes which outlived an attempt's stop are killed, each by its identity.

    `processes` are pid and start ticks as the shim named them, at most 20, valid in the boot `boot_id` of the node;
    `outcome` says by pid what came of it, once `done_at` is set. A later wish replaces a done one.
    """

    attempt = models.OneToOneField(
        RunAttempt, on_delete=models.CASCADE, primary_key=True, related_name="escaped"
    )
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False)
    node_id = models.CharField(max_length=64)
    boot_id = models.CharField(max_length=64)
    processes = models.JSONField()
    requested_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)
    outcome = models.JSONField(null=True)

    class Meta:
        db_table = "run_escaped_processes"
        indexes = [
            models.Index(
                fields=["node_id", "requested_at"],
                condition=Q(done_at__isnull=True),
                name="run_escaped_waiting",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(done_at__isnull=True, outcome__isnull=True)
                | Q(done_at__isnull=False, outcome__isnull=False),
                name="run_escaped_done_pair",
            )
        ]

    def __str__(self) -> str:
        return f"{self.attempt_id} {'done' if self.done_at else 'waiting'}"


class CompletionReceiptJournal(models.Model):
    """A row means: a receipt file of this attempt may exist on the node's disk. No row means settled."""

    class State(models.TextChoices):
        PENDING = "pending"
        QUARANTINED = "quarantined"

    attempt = models.OneToOneField(
        RunAttempt, on_delete=models.CASCADE, primary_key=True, related_name="journal"
    )
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False)
    node_id = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=State, default=State.PENDING)
    quarantine_ref = models.CharField(max_length=255, null=True)  # noqa: DJ001
    purge_after = models.DateTimeField(null=True)
    registered_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "completion_receipt_journals"
        indexes = [
            models.Index(fields=["node_id", "updated_at", "attempt"], name="receipt_journal_scan"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state="pending", quarantine_ref__isnull=True, purge_after__isnull=True)
                | Q(state="quarantined", quarantine_ref__isnull=False, purge_after__isnull=False),
                name="receipt_journal_state_check",
            )
        ]

    def __str__(self) -> str:
        return f"{self.attempt_id} {self.state}"
