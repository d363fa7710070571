"""One try of a run by one worker, with its own outcome, log and deadline (runs.md §3.2)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.core import fields
from apps.runs.models.run import Run


class AttemptStatus(models.TextChoices):
    CLAIMED = "claimed"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"


ACTIVE_ATTEMPT = frozenset({"claimed", "starting", "running"})


class RunAttempt(models.Model):
    id = fields.IdField()
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    attempt = models.PositiveIntegerField()
    status = models.CharField(max_length=32, choices=AttemptStatus)
    executor_type = models.CharField(max_length=64, default="local_process")
    worker_id = models.CharField(max_length=128, null=True)  # noqa: DJ001
    executor_handle = models.CharField(max_length=2048, null=True)  # noqa: DJ001
    pid = models.PositiveIntegerField(null=True)
    log_artifact_id = models.CharField(max_length=36, null=True)  # noqa: DJ001
    deadline_at = models.DateTimeField(null=True)
    callback_token_hash = models.CharField(max_length=64, null=True)  # noqa: DJ001
    callback_sequence = models.IntegerField(default=0)
    created_at = fields.created_at()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    error_code = models.CharField(max_length=128, null=True)  # noqa: DJ001
    error_summary = models.CharField(max_length=1024, null=True)  # noqa: DJ001

    class Meta:
        db_table = "run_attempts"
        indexes = [
            # Only of attempts with a time limit: the others pay nothing for the look at overdue ones.
            models.Index(
                fields=["status", "deadline_at", "id"],
                condition=Q(deadline_at__isnull=False),
                name="run_attempt_deadline",
            )
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt"], name="run_attempt_number"),
            fields.one_of("status", AttemptStatus.values, "run_attempt_status_check"),
            fields.at_least("attempt", 1, "run_attempt_number_check"),
            fields.at_least("callback_sequence", 0, "run_attempt_sequence_check"),
            fields.at_least("pid", 1, "run_attempt_pid_check"),
            models.CheckConstraint(
                condition=Q(exit_code__isnull=True) | Q(exit_code__gte=0, exit_code__lte=255),
                name="run_attempt_exit_code_check",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} #{self.attempt}"
