"""That an approved run was created, written with the run in one transaction (approvals.md §3.6)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from apps.approvals.models.execution import MAX_ATTEMPTS, ApprovedActionDispatch
from apps.approvals.models.request import ApprovalRequest
from apps.core import clock, fields
from apps.core.fields import MAX_VERSION
from apps.projects.models import Project
from apps.runs.models import Run


class ApprovedRunReceipt(models.Model):
    """The evidence that recovery looks for; `evidence_digest` is over all other members."""

    dispatch = models.OneToOneField(
        ApprovedActionDispatch, on_delete=models.PROTECT, primary_key=True, related_name="receipt"
    )
    approval_request = models.ForeignKey(
        ApprovalRequest, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    schema_version = models.IntegerField(default=1)
    action_type = models.CharField(max_length=64, default="run.create")
    action_digest = models.CharField(max_length=64)
    execution_attempt = models.IntegerField()
    execution_version = models.IntegerField()
    started_at = models.DateTimeField()
    idempotency_key = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, default="succeeded")
    result_code = models.CharField(max_length=64, default="approved_run_created")
    resource_type = models.CharField(max_length=16, default="run")
    resource = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="+", db_index=False)
    finished_at = models.DateTimeField()
    evidence_digest = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "approved_run_receipts"
        indexes = [
            models.Index(fields=["project", "created_at", "dispatch"], name="approved_run_receipt_list")
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["resource_type", "resource"], name="approved_run_receipt_resource_uidx"
            ),
            models.CheckConstraint(
                condition=Q(schema_version=1), name="approved_run_receipt_schema_version_check"
            ),
            models.CheckConstraint(
                condition=Q(action_type="run.create"), name="approved_run_receipt_action_type_check"
            ),
            models.CheckConstraint(
                condition=Q(outcome="succeeded"), name="approved_run_receipt_outcome_check"
            ),
            models.CheckConstraint(
                condition=Q(result_code="approved_run_created"), name="approved_run_receipt_result_code_check"
            ),
            models.CheckConstraint(
                condition=Q(resource_type="run"), name="approved_run_receipt_resource_type_check"
            ),
            models.CheckConstraint(
                condition=Q(execution_attempt__gte=1, execution_attempt__lte=MAX_ATTEMPTS),
                name="approved_run_receipt_execution_attempt_check",
            ),
            models.CheckConstraint(
                condition=Q(execution_version__gte=1, execution_version__lte=MAX_VERSION),
                name="approved_run_receipt_execution_version_check",
            ),
            models.CheckConstraint(
                condition=Q(idempotency_key=F("dispatch")), name="approved_run_receipt_idempotency_key_check"
            ),
            models.CheckConstraint(
                condition=Q(
                    started_at__gte=clock.from_ms(0),
                    finished_at__gte=F("started_at"),
                    created_at=F("finished_at"),
                ),
                name="approved_run_receipt_timestamps_check",
            ),
            fields.long("evidence_digest", 64, "approved_run_receipt_evidence_digest_check"),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.dispatch_id} {self.resource_id}"
