"""Starts that did not happen, each with its reason (api.md, lessons D5)."""

from __future__ import annotations

from django.db import models
from django.db.models import F

from apps.core import fields
from apps.projects.models import Project
from apps.tasks.models import Task


class SkipReason(models.TextChoices):
    CONCURRENCY = "concurrency_skipped"
    MISSED = "missed"
    TASK_DISABLED = "task_disabled"
    TASK_ARCHIVED = "task_archived"
    PROJECT_ARCHIVED = "project_archived"


class Skip(models.Model):
    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="skips", db_index=False)
    reason = models.CharField(max_length=32, choices=SkipReason)
    trigger_type = models.CharField(max_length=64)
    trigger_id = models.UUIDField(null=True)
    triggered_by_type = models.CharField(max_length=32)
    triggered_by_id = models.CharField(max_length=255)
    scheduled_for = models.DateTimeField(null=True)
    blocking_run_id = models.UUIDField(null=True)
    created_at = fields.created_at()

    class Meta:
        db_table = "run_skips"
        indexes = [
            models.Index(F("project"), F("created_at").desc(), F("id").desc(), name="run_skip_project"),
            models.Index(F("task"), F("created_at").desc(), F("id").desc(), name="run_skip_task"),
        ]

    def __str__(self) -> str:
        return self.reason
