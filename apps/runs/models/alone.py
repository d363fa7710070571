"""Starts of tasks that need an approval, without one: by whom, and why (docs/approvals.md)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from apps.core import fields
from apps.projects.models import Project
from apps.runs.models.run import Run
from apps.tasks.models import Task


class AloneStart(models.Model):
    """That a person started a task that needs an approval, as the project's policy lets their role.

    Written before its run, which the database refuses without. Never changed.
    """

    class Kind(models.TextChoices):
        EXEMPT = "exempt"
        BREAK_GLASS = "break_glass"

    run = models.OneToOneField(Run, on_delete=models.PROTECT, primary_key=True, related_name="alone")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="+", db_index=False)
    kind = models.CharField(max_length=16, choices=Kind)
    role = models.CharField(max_length=16)
    started_by_id = models.CharField(max_length=255)
    reason = models.CharField(max_length=500, blank=True, default="")
    policy_version = models.IntegerField()
    created_at = fields.created_at()

    class Meta:
        db_table = "run_alone_starts"
        indexes = [
            models.Index(F("project"), F("kind"), F("created_at").desc(), F("run"), name="run_alone_project"),
        ]
        constraints = [
            fields.one_of("kind", ["exempt", "break_glass"], "run_alone_kind_check"),
            fields.one_of("role", ["owner", "admin", "operator"], "run_alone_role_check"),
            fields.at_least("policy_version", 1, "run_alone_policy_check"),
            models.CheckConstraint(
                condition=Q(kind="exempt", reason="") | (Q(kind="break_glass") & ~Q(reason="")),
                name="run_alone_reason_check",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.kind}"
