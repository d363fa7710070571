"""What exactly would happen: the immutable plan and preview behind an `action_ref` (approvals.md §6.1, §11)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.core import fields
from apps.identity.models import SubjectType
from apps.projects.models import Project


class ApprovedActionPlan(models.Model):
    """A plan as the server built it when the request was filed.

    `input_ref` names the sealed payload of input and arguments with a digest over them; `task_snapshot_ref` is the
    digest of `snapshot`, the context with its resolved secret versions. `preview` is the canonical JSON that people
    are shown. Neither holds input, scripts or values. `requester_binding_version` is the role that asked.
    """

    action_ref = models.CharField(primary_key=True, max_length=255, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    schema_version = models.PositiveSmallIntegerField(default=1)
    action_type = models.CharField(max_length=64)
    task_id = models.CharField(max_length=255)
    task_revision = models.CharField(max_length=128)
    executor_type = models.CharField(max_length=32)
    priority = models.IntegerField()
    task_name = models.CharField(max_length=255, null=True)  # noqa: DJ001
    task_snapshot_ref = models.CharField(max_length=512, null=True)  # noqa: DJ001
    input_ref = models.CharField(max_length=512, null=True)  # noqa: DJ001
    action_digest = models.CharField(max_length=64)
    request_id = models.CharField(max_length=64)
    input_payload_id = models.UUIDField()
    wish_digest = models.CharField(max_length=64)
    snapshot = models.TextField()
    preview = models.TextField()
    preview_digest = models.CharField(max_length=64)
    requested_by_type = models.CharField(max_length=32, choices=SubjectType)
    requested_by_id = models.CharField(max_length=255)
    requester_binding_version = models.IntegerField()
    created_at = fields.created_at()

    class Meta:
        db_table = "approved_action_plans"
        indexes = [
            # "Changes since the last approved revision" and "what stands when this task changes".
            models.Index(fields=["task_id", "created_at", "action_ref"], name="approved_plan_task"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["request_id"], name="approved_plan_request_uidx"),
            models.CheckConstraint(condition=Q(schema_version=1), name="approved_plan_schema_check"),
            fields.one_of(
                "executor_type", ["local_process", "docker", "kubernetes", "remote_worker"],
                "approved_plan_executor_check",
            ),
            fields.one_of("requested_by_type", SubjectType.values, "approved_plan_requester_type_check"),
            fields.long("action_digest", 64, "approved_plan_digest_check"),
            fields.long("preview_digest", 64, "approved_plan_preview_digest_check"),
            fields.long("wish_digest", 64, "approved_plan_wish_digest_check"),
            fields.at_least("requester_binding_version", 1, "approved_plan_binding_check"),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.action_ref
