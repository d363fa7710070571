"""Approved actions on their way: the immutable dispatch and its execution (approvals.md §3.2, §3.3)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from apps.approvals.models.request import ApprovalRequest
from apps.core import clock, fields
from apps.core.fields import MAX_VERSION, absent, present
from apps.identity.models import SubjectType
from apps.projects.models import Project

MAX_ATTEMPTS = 16
MAX_LEASE_MS = 600_000
LEASE = ("lease_owner", "lease_token", "lease_expires_at")


class ApprovedActionDispatch(models.Model):
    """What was handed over, once, by consuming an approval; its id is the handler's idempotency key."""

    id = models.CharField(primary_key=True, max_length=64, editable=False)
    approval_request = models.OneToOneField(
        ApprovalRequest, on_delete=models.PROTECT, related_name="dispatch"
    )
    approval_request_version = models.IntegerField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    state = models.CharField(max_length=16, default="pending")
    permission = models.CharField(max_length=255)
    action_type = models.CharField(max_length=64)
    action_ref = models.CharField(max_length=255)
    action_digest = models.CharField(max_length=64)
    preview_digest = models.CharField(max_length=64)
    requested_by_type = models.CharField(max_length=32, choices=SubjectType)
    requested_by_id = models.CharField(max_length=255)
    consumed_by_type = models.CharField(max_length=32, choices=SubjectType)
    consumed_by_id = models.CharField(max_length=255)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "approved_action_dispatches"
        indexes = [
            models.Index(fields=["project", "state", "created_at", "id"], name="approved_dispatch_project")
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(approval_request_version=3), name="approved_action_dispatch_version_check"
            ),
            models.CheckConstraint(
                condition=Q(state="pending"), name="approved_action_dispatch_state_check"
            ),
            fields.one_of(
                "requested_by_type", SubjectType.values, "approved_action_dispatch_requester_type_check"
            ),
            fields.one_of(
                "consumed_by_type", ["system", "worker"], "approved_action_dispatch_consumer_type_check"
            ),
            models.CheckConstraint(
                condition=Q(created_at__gte=clock.from_ms(0)), name="approved_action_dispatch_created_check"
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.id


class ApprovedActionExecution(models.Model):
    """How far the action of a dispatch has come; `started_at` is the barrier behind which nothing is repeated."""

    class Status(models.TextChoices):
        PENDING = "pending"
        LEASED = "leased"
        EXECUTING = "executing"
        RETRY_WAIT = "retry_wait"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        BLOCKED = "blocked"

    dispatch = models.OneToOneField(
        ApprovedActionDispatch, on_delete=models.PROTECT, primary_key=True, related_name="execution"
    )
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    version = models.IntegerField(default=0)
    attempt_count = models.IntegerField(default=0)
    max_attempts = models.IntegerField(default=5)
    eligible_at = models.DateTimeField(null=True)
    next_attempt_at = models.DateTimeField(null=True)
    lease_owner = models.CharField(max_length=128, null=True)  # noqa: DJ001
    lease_token = models.CharField(max_length=128, null=True, editable=False)  # noqa: DJ001
    lease_expires_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    result_mutation_id = models.CharField(max_length=64, null=True)  # noqa: DJ001
    last_result_code = models.CharField(max_length=64, null=True)  # noqa: DJ001
    completed_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "approved_action_executions"
        indexes = [
            models.Index(fields=["eligible_at", "dispatch"], name="approved_execution_due"),
            models.Index(
                fields=["project", "status", "created_at", "dispatch"], name="approved_execution_list"
            ),
            models.Index(fields=["status", "lease_expires_at", "dispatch"], name="approved_execution_lease"),
        ]
        constraints = [
            fields.one_of(
                "status",
                ["pending", "leased", "executing", "retry_wait", "succeeded", "failed", "blocked"],
                "approved_action_execution_status_check",
            ),
            models.CheckConstraint(
                condition=Q(version__gte=0, version__lte=MAX_VERSION),
                name="approved_action_execution_version_check",
            ),
            models.CheckConstraint(
                condition=Q(attempt_count__gte=0, attempt_count__lte=MAX_ATTEMPTS),
                name="approved_action_execution_attempt_count_check",
            ),
            models.CheckConstraint(
                condition=Q(max_attempts__gte=1, max_attempts__lte=MAX_ATTEMPTS),
                name="approved_action_execution_max_attempts_check",
            ),
            models.CheckConstraint(
                condition=Q(attempt_count__lte=F("max_attempts")),
                name="approved_action_execution_attempts_check",
            ),
            fields.together(LEASE, "approved_action_execution_lease_check"),
            models.CheckConstraint(
                condition=Q(lease_expires_at__isnull=True) | Q(lease_expires_at__gt=F("updated_at")),
                name="approved_action_execution_lease_time_check",
            ),
            fields.within(
                "lease_expires_at", "updated_at", MAX_LEASE_MS, "approved_action_execution_lease_length_check"
            ),
            models.CheckConstraint(
                condition=Q(created_at__gte=clock.from_ms(0)), name="approved_action_execution_created_check"
            ),
            fields.not_before("updated_at", "created_at", "approved_action_execution_updated_check"),
            models.CheckConstraint(
                condition=Q(started_at__isnull=True)
                | Q(started_at__gte=F("created_at"), started_at__lte=F("updated_at")),
                name="approved_action_execution_started_check",
            ),
            models.CheckConstraint(
                condition=Q(completed_at__isnull=True) | Q(completed_at=F("updated_at")),
                name="approved_action_execution_completed_check",
            ),
            models.CheckConstraint(
                condition=(
                    Q(status="pending", version=0, attempt_count=0)
                    & present("eligible_at")
                    & absent(
                        "next_attempt_at", "started_at", "result_mutation_id", "last_result_code",
                        "completed_at", *LEASE,
                    )
                )
                | (
                    Q(status="leased", attempt_count__gte=1, eligible_at=F("lease_expires_at"))
                    & present("eligible_at", *LEASE)
                    & absent(
                        "next_attempt_at", "started_at", "result_mutation_id", "last_result_code",
                        "completed_at",
                    )
                )
                | (
                    Q(status="executing", attempt_count__gte=1)
                    & present("started_at", *LEASE)
                    & absent(
                        "eligible_at", "next_attempt_at", "result_mutation_id", "last_result_code",
                        "completed_at",
                    )
                )
                | (
                    Q(
                        status="retry_wait", attempt_count__gte=1, attempt_count__lt=F("max_attempts"),
                        eligible_at=F("next_attempt_at"),
                    )
                    & present("eligible_at", "next_attempt_at", "result_mutation_id", "last_result_code")
                    & absent("started_at", "completed_at", *LEASE)
                )
                | (
                    (
                        (Q(status__in=["succeeded", "failed"]) & present("started_at"))
                        | Q(status="blocked")
                    )
                    & present("result_mutation_id", "last_result_code", "completed_at")
                    & absent("eligible_at", "next_attempt_at", *LEASE)
                ),
                name="approved_action_execution_state_tuple_check",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.dispatch_id} {self.status}"
