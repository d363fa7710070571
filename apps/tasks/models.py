"""Tasks and the immutable revisions of what they execute (runs.md §3.9, api.md)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.core import fields
from apps.projects.models import Project

MAX_PARALLEL = 1024


class TaskExecutionRevision(models.Model):
    """What a run executes, word for word; a run pins one and refuses it when its digest does not hold."""

    id = fields.IdField()
    project_id = models.CharField(max_length=128)
    task_id = models.CharField(max_length=128)
    task_revision = models.CharField(max_length=128)
    executor_type = models.CharField(max_length=64)
    execution_template = models.TextField()
    context_ref = models.CharField(max_length=512)
    content_digest = models.CharField(max_length=64)
    created_at = fields.created_at()
    created_by_type = models.CharField(max_length=32)
    created_by_id = models.CharField(max_length=255)

    class Meta:
        db_table = "task_execution_revisions"
        indexes = [
            models.Index(fields=["task_id", "created_at", "id"], name="task_revision_history"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["project_id", "task_id", "task_revision"], name="task_revision_key"
            ),
        ]

    def __str__(self) -> str:
        return self.task_revision


class Task(models.Model):
    """What people keep in a project: a name, a rule of concurrency and the revision that runs now."""

    class Concurrency(models.TextChoices):
        QUEUE = "queue"
        SKIP = "skip"
        REPLACE = "replace"
        PARALLEL = "parallel"

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="tasks", db_index=False)
    slug = models.CharField(max_length=64)
    name = models.CharField(max_length=255)
    description = models.TextField(blank=True, default="")
    enabled = models.BooleanField(default=True)
    archived_at = models.DateTimeField(null=True)
    pinned = models.BooleanField(default=False)
    labels = models.JSONField(default=list)
    priority = models.IntegerField(default=0)
    concurrency = models.CharField(max_length=16, choices=Concurrency, default=Concurrency.QUEUE)
    max_parallel = models.PositiveSmallIntegerField(default=1)
    revision = models.ForeignKey(
        TaskExecutionRevision, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    version = models.IntegerField(default=1)
    created_at = fields.created_at()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "tasks"
        indexes = [
            models.Index(fields=["project", "created_at", "id"], name="task_project_created"),
            models.Index(
                models.F("project"),
                models.F("pinned").desc(),
                models.F("enabled").desc(),
                models.F("created_at").desc(),
                models.F("id").desc(),
                name="task_project_panel_order",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "slug"], condition=Q(archived_at__isnull=True), name="task_project_slug"
            ),
            fields.one_of("concurrency", ["queue", "skip", "replace", "parallel"], "task_concurrency_check"),
            models.CheckConstraint(
                condition=Q(max_parallel__gte=1, max_parallel__lte=MAX_PARALLEL),
                name="task_max_parallel_check",
            ),
            fields.at_least("version", 1, "task_version_check"),
        ]

    def __str__(self) -> str:
        return self.name
