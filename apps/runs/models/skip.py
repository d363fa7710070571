"""Starts that did not happen, each with its reason (api.md, lessons D5).

Many due times with one reason are one row: `count` of them between `scheduled_for` and `last_scheduled_for`.
An `open` row still goes on (a disabled task): the trigger is not looked at meanwhile, and the row is completed
when it is again. So a rule that is due every second leaves one row per pause, not one per second.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from apps.core import fields
from apps.projects.models import Project
from apps.tasks.models import Task


class SkipReason(models.TextChoices):
    CONCURRENCY = "concurrency_skipped", _("The task was running already, and skips starts meanwhile.")
    MISSED = "missed", _("The time passed while nothing could be started.")
    TASK_DISABLED = "task_disabled", _("The task was disabled.")
    TASK_ARCHIVED = "task_archived", _("The task was archived.")
    PROJECT_ARCHIVED = "project_archived", _("The project was archived.")
    TRIGGER_DISABLED = "trigger_disabled", _("The trigger was disabled.")
    APPROVAL_REQUIRED = "approval_required", _("The task needs an approval first.")
    BROKEN = "trigger_broken", _("The trigger cannot be carried out as it is; look at its rule and its task.")


class MissedCause(models.TextChoices):
    """Why a due time was missed, as far as the scheduler knows."""

    SCHEDULER_DOWN = "scheduler_down", _("No scheduler was running.")
    CLOCK_JUMP = "clock_jump", _("The system's clock was set forward, or the machine was asleep.")
    LATE = "late", _("The scheduler was too late, for example because the database was away.")


class Skip(models.Model):
    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="skips", db_index=False)
    reason = models.CharField(max_length=32, choices=SkipReason)
    cause = models.CharField(max_length=32, choices=MissedCause, null=True)  # noqa: DJ001
    trigger_type = models.CharField(max_length=64)
    trigger_id = models.UUIDField(null=True)
    triggered_by_type = models.CharField(max_length=32)
    triggered_by_id = models.CharField(max_length=255)
    scheduled_for = models.DateTimeField(null=True)
    last_scheduled_for = models.DateTimeField(null=True)
    count = models.BigIntegerField(default=1)
    open = models.BooleanField(default=False)
    blocking_run_id = models.UUIDField(null=True)
    # Of a start that needs an approval: the request that is filed for it, and how far that is: `due`, `filed`, or
    # the code of what kept it from being filed.
    approval_id = models.CharField(max_length=64, null=True)  # noqa: DJ001
    filing = models.CharField(max_length=64, null=True)  # noqa: DJ001
    created_at = fields.created_at()

    class Meta:
        db_table = "run_skips"
        indexes = [
            models.Index(F("project"), F("created_at").desc(), F("id").desc(), name="run_skip_project"),
            models.Index(F("task"), F("created_at").desc(), F("id").desc(), name="run_skip_task"),
            models.Index(
                fields=["task", "scheduled_for"],
                condition=Q(scheduled_for__isnull=False),
                name="run_skip_due",
            ),
            models.Index(
                fields=["task", "last_scheduled_for"],
                condition=Q(last_scheduled_for__isnull=False),
                name="run_skip_span",
            ),
            models.Index(fields=["id"], condition=Q(filing="due"), name="run_skip_to_file"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["trigger_id"], condition=Q(open=True), name="run_skip_open"),
            models.CheckConstraint(
                condition=Q(approval_id__isnull=False, filing__isnull=False, filing__in=["due", "filed"])
                | Q(approval_id__isnull=True, filing__isnull=True)
                | (Q(approval_id__isnull=True, filing__isnull=False) & ~Q(filing__in=["due", "filed"])),
                name="run_skip_approval_check",
            ),
            models.CheckConstraint(
                condition=Q(filing__isnull=True) | Q(reason=SkipReason.APPROVAL_REQUIRED),
                name="run_skip_approval_reason_check",
            ),
            fields.one_of("reason", SkipReason.values, "run_skip_reason_check"),
            fields.at_least("count", 1, "run_skip_count_check"),
            fields.not_before("last_scheduled_for", "scheduled_for", "run_skip_span_check"),
        ]

    def __str__(self) -> str:
        return self.reason
