"""The run: one start of a task, from the wish to the last word (runs.md §3.1, §3.4)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import pgettext_lazy

from apps.core import fields
from apps.projects.models import Project
from apps.tasks.models import Task


class RunStatus(models.TextChoices):
    CREATED = "created", pgettext_lazy("run status", "Created")
    QUEUED = "queued", pgettext_lazy("run status", "Queued")
    DISPATCHING = "dispatching", pgettext_lazy("run status", "Starting")
    RUNNING = "running", pgettext_lazy("run status", "Running")
    WAITING_APPROVAL = "waiting_approval", pgettext_lazy("run status", "Needs approval")
    RETRY_WAIT = "retry_wait", pgettext_lazy("run status", "Waiting to retry")
    SUCCEEDED = "succeeded", pgettext_lazy("run status", "Succeeded")
    FAILED = "failed", pgettext_lazy("run status", "Failed")
    CANCELLED = "cancelled", pgettext_lazy("run status", "Stopped")
    TIMED_OUT = "timed_out", pgettext_lazy("run status", "Timed out")
    LOST = "lost", pgettext_lazy("run status", "Lost")


ENDED = frozenset({"succeeded", "failed", "cancelled", "timed_out"})
OPEN = frozenset(RunStatus.values) - ENDED


class CancelReason(models.TextChoices):
    USER = "user"
    POLICY = "policy"
    SHUTDOWN = "shutdown"
    RECONCILE = "reconcile"
    TIMEOUT = "timeout"


CANCEL_REASONS = frozenset(CancelReason.values)


class TriggerType(models.TextChoices):
    MANUAL = "manual", pgettext_lazy("trigger", "by hand")
    API = "api", pgettext_lazy("trigger", "API")
    CRON = "cron", pgettext_lazy("trigger", "schedule")
    INTERVAL = "interval", pgettext_lazy("trigger", "interval")
    ONCE = "once", pgettext_lazy("trigger", "once")
    BOOT = "boot", pgettext_lazy("trigger", "on start")
    WEBHOOK = "webhook", pgettext_lazy("trigger", "webhook")
    RUN_MANUAL_RETRY = "run_manual_retry", pgettext_lazy("trigger", "retry")
    APPROVED_ACTION = "approved_action", pgettext_lazy("trigger", "approved action")
    WORKFLOW = "workflow", pgettext_lazy("trigger", "workflow")
    CONTROLLER = "controller", pgettext_lazy("trigger", "controller")


TRIGGER_TYPES = frozenset(TriggerType.values)


class Run(models.Model):
    """The head of the run's events: `version` and `event_sequence` are the number of the newest one.

    `holds_place` is the answer to "has its task a place for it?", decided under the task's lock; only a run
    with a place is a candidate for dispatch (architecture.md §9).
    """

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="runs", db_index=False)
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="runs", db_index=False)
    task_revision = models.CharField(max_length=128)
    task_name = models.CharField(max_length=255)
    parent_run = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, related_name="+", db_index=False
    )
    retry_of = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, related_name="+", db_index=False
    )
    trigger_id = models.UUIDField(null=True)
    trigger_type = models.CharField(max_length=64, choices=TriggerType)
    execution_origin = models.CharField(max_length=64, default="manual")
    execution_owner = models.CharField(max_length=16, default="runtime")
    triggered_by_type = models.CharField(max_length=32)
    triggered_by_id = models.CharField(max_length=255)
    owner_type = models.CharField(max_length=32, null=True)  # noqa: DJ001
    owner_id = models.CharField(max_length=255, null=True)  # noqa: DJ001
    request_id = models.CharField(max_length=128, null=True)  # noqa: DJ001
    request_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001
    scheduled_for = models.DateTimeField(null=True)
    status = models.CharField(max_length=32, choices=RunStatus)
    version = models.IntegerField(default=0)
    event_sequence = models.IntegerField(default=0)
    priority = models.IntegerField(default=0)
    holds_place = models.BooleanField(default=False)
    # The key of the labels that a worker must have, of its revision (apps.tasks.placement); empty = any worker.
    requires = models.CharField(max_length=1024, blank=True, default="")
    # Whether it has a retry policy: ends of the many runs without one never look for it.
    may_retry = models.BooleanField(default=False)
    idempotency_key = models.CharField(max_length=255, null=True)  # noqa: DJ001
    input_ref = models.UUIDField(null=True)
    output_ref = models.UUIDField(null=True)
    output_code = models.CharField(max_length=32, null=True)  # noqa: DJ001
    # Names of the secrets that were masked in what it printed or left, a line each.
    secrets_printed = models.TextField(null=True)  # noqa: DJ001
    created_at = fields.created_at()
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_reason = models.CharField(max_length=32, choices=CancelReason, null=True)  # noqa: DJ001
    error_code = models.CharField(max_length=128, null=True)  # noqa: DJ001
    error_summary = models.CharField(max_length=1024, null=True)  # noqa: DJ001

    class Meta:
        db_table = "runs"
        indexes = [
            models.Index(F("project"), F("created_at").desc(), F("id").desc(), name="run_project_created"),
            models.Index(F("task"), F("created_at").desc(), F("id").desc(), name="run_task_created"),
            models.Index(
                F("project"), F("status"), F("created_at").desc(), F("id").desc(), name="run_project_status"
            ),
            models.Index(
                F("project"), F("trigger_type"), F("created_at").desc(), F("id").desc(), name="run_project_trigger"
            ),
            models.Index(
                F("project"), F("triggered_by_id"), F("created_at").desc(), F("id").desc(),
                condition=Q(triggered_by_type="user"), name="run_project_person",
            ),
            models.Index(
                F("requires"),
                F("priority").desc(),
                F("queued_at"),
                F("id"),
                condition=Q(
                    execution_owner="runtime",
                    status="queued",
                    cancel_requested_at__isnull=True,
                    holds_place=True,
                ),
                name="run_candidates",
            ),
            models.Index(
                F("requires"),
                F("priority").desc(),
                F("queued_at"),
                F("id"),
                condition=Q(
                    execution_owner="runtime",
                    status="dispatching",
                    cancel_requested_at__isnull=True,
                    holds_place=True,
                ),
                name="run_reclaimable",
            ),
            models.Index(
                F("task"),
                F("priority").desc(),
                F("queued_at"),
                F("id"),
                condition=Q(status="queued", holds_place=False),
                name="run_waiting_for_place",
            ),
            models.Index(fields=["task", "id"], condition=Q(holds_place=True), name="run_places"),
            models.Index(fields=["id"], condition=Q(status="lost"), name="run_lost"),
            models.Index(fields=["task", "id"], condition=Q(status="retry_wait"), name="run_retry_wait"),
            models.Index(
                fields=["status", "cancel_requested_at", "id"],
                condition=Q(cancel_requested_at__isnull=False)
                & ~Q(status__in=["succeeded", "failed", "cancelled", "timed_out"]),
                name="run_cancelling",
            ),
            models.Index(
                fields=["owner_type", "owner_id"], condition=Q(owner_type__isnull=False), name="run_owner"
            ),
            models.Index(fields=["retry_of"], condition=Q(retry_of__isnull=False), name="run_retry_of"),
        ]  # fmt: skip
        constraints = [
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="run_idempotency_key",
            ),
            fields.one_of("status", RunStatus.values, "run_status_check"),
            fields.one_of("cancel_reason", CancelReason.values, "run_cancel_reason_check"),
            fields.one_of("execution_owner", ["runtime", "legacy"], "run_execution_owner_check"),
            fields.at_least("version", 0, "run_version_check"),
            models.CheckConstraint(condition=Q(event_sequence=F("version")), name="run_sequence_is_version"),
            models.CheckConstraint(
                condition=Q(cancel_requested_at__isnull=True, cancel_reason__isnull=True)
                | Q(cancel_requested_at__isnull=False, cancel_reason__isnull=False),
                name="run_cancel_pair",
            ),
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True) | Q(status__in=sorted(ENDED)),
                name="run_finished_is_ended",
            ),
            models.CheckConstraint(
                condition=Q(owner_type__isnull=True, owner_id__isnull=True)
                | Q(owner_type__isnull=False, owner_id__isnull=False),
                name="run_owner_pair",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_name} {self.id}"

    @property
    def ended(self) -> bool:
        """Whether nothing more can happen to it."""
        return self.status in ENDED

    @property
    def printed(self) -> list[str]:
        """Names of the secrets that it printed."""
        return self.secrets_printed.split("\n") if self.secrets_printed else []


class RunRetryPolicy(models.Model):
    """What may be tried again by itself; absent = nothing (runs.md §3.4).

    Written at admission; afterwards only `next_attempt_at` moves, and with it `version` and `updated_at`. It is set
    exactly while the run is in `retry_wait`.
    """

    class Safety(models.TextChoices):
        UNKNOWN = "unknown"
        IDEMPOTENT = "idempotent"
        DEDUPLICATED = "deduplicated"

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="retry_policy")
    max_attempts = models.PositiveSmallIntegerField()
    retry_on_lost = models.BooleanField()
    safety = models.CharField(max_length=16, choices=Safety)
    backoff_base_ms = models.BigIntegerField()
    backoff_max_ms = models.BigIntegerField()
    retry_on_failure = models.BooleanField(default=False)
    retry_exit_codes = models.JSONField(default=list)
    next_attempt_at = models.DateTimeField(null=True)
    version = models.IntegerField(default=0)
    created_at = fields.created_at()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "run_retry_policies"
        indexes = [
            models.Index(
                fields=["next_attempt_at", "run"],
                condition=Q(next_attempt_at__isnull=False),
                name="run_retry_due",
            ),
        ]
        constraints = [
            fields.at_least("version", 0, "run_retry_version_check"),
            fields.not_before("updated_at", "created_at", "run_retry_updated_check"),
            models.CheckConstraint(
                condition=Q(max_attempts__gte=1, max_attempts__lte=16), name="run_retry_attempts_check"
            ),
            fields.one_of("safety", ["unknown", "idempotent", "deduplicated"], "run_retry_safety_check"),
            models.CheckConstraint(
                condition=Q(
                    backoff_base_ms__gte=0,
                    backoff_base_ms__lte=F("backoff_max_ms"),
                    backoff_max_ms__lte=86_400_000,
                ),
                name="run_retry_backoff_check",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.max_attempts} attempts"
