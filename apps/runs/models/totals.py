"""Totals per hour, so that no list ever counts runs (architecture.md §4)."""

from __future__ import annotations

from django.db import models
from django.db.models import F

from apps.core import fields
from apps.tasks.models import Task


class UncountedRun(models.Model):
    """An end that no total holds yet: written with the end, folded and removed by a control job."""

    run_id = models.UUIDField(primary_key=True)
    project_id = models.CharField(max_length=128)
    task_id = models.UUIDField()
    status = models.CharField(max_length=32)
    finished_at = models.DateTimeField()
    duration_ms = models.BigIntegerField()

    class Meta:
        db_table = "run_uncounted"

    def __str__(self) -> str:
        return str(self.run_id)


class RunHourTotal(models.Model):
    """How many runs of a task ended how within one hour (UTC), and how long they took together."""

    id = fields.IdField()
    project_id = models.CharField(max_length=128)
    task_id = models.UUIDField()
    hour = models.DateTimeField()
    status = models.CharField(max_length=32)
    runs = models.IntegerField()
    duration_ms = models.BigIntegerField()

    class Meta:
        db_table = "run_hour_totals"
        indexes = [models.Index(fields=["project_id", "hour"], name="run_hour_total_project")]
        constraints = [
            models.UniqueConstraint(fields=["task_id", "hour", "status"], name="run_hour_total_key"),
        ]

    def __str__(self) -> str:
        return f"{self.hour} {self.status} {self.runs}"


class ProjectHourTotal(models.Model):
    """The same for a whole project: what charts read, a few rows per hour however many tasks there are."""

    id = fields.IdField()
    project_id = models.CharField(max_length=128)
    hour = models.DateTimeField()
    status = models.CharField(max_length=32)
    runs = models.IntegerField()
    duration_ms = models.BigIntegerField()

    class Meta:
        db_table = "run_project_hour_totals"
        constraints = [
            models.UniqueConstraint(
                fields=["project_id", "hour", "status"], name="run_project_hour_total_key"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.hour} {self.status} {self.runs}"


class TaskDayTotal(models.Model):
    """How often and how long a task ran within one day of the installation's zone; each order has its index."""

    id = fields.IdField()
    project_id = models.CharField(max_length=128)
    task_id = models.UUIDField()
    day = models.DateField()
    runs = models.IntegerField()
    duration_ms = models.BigIntegerField()
    longest_ms = models.BigIntegerField()

    class Meta:
        db_table = "run_task_day_totals"
        indexes = [
            models.Index(F("project_id"), F("day"), F(column).desc(), name=f"run_task_day_{name}")
            for column, name in (("runs", "runs"), ("duration_ms", "duration"), ("longest_ms", "longest"))
        ]
        constraints = [models.UniqueConstraint(fields=["task_id", "day"], name="run_task_day_key")]

    def __str__(self) -> str:
        return f"{self.task_id} {self.day} {self.runs}"


class UsualDuration(models.Model):
    """How long a task's successes take, newer ones weighing more: a mean over about the last `RUNS`."""

    RUNS = 20

    task_id = models.UUIDField(primary_key=True)
    runs = models.IntegerField()
    mean_ms = models.BigIntegerField()

    class Meta:
        db_table = "run_usual_durations"

    def __str__(self) -> str:
        return f"{self.task_id} {self.mean_ms} ms"


class LastEnd(models.Model):
    """The newest end of each task, at most one fold old: lists are put in order and narrowed by it."""

    task = models.OneToOneField(Task, on_delete=models.PROTECT, primary_key=True, related_name="last_end")
    project_id = models.CharField(max_length=128)
    run_id = models.UUIDField()
    status = models.CharField(max_length=32)
    finished_at = models.DateTimeField()

    class Meta:
        db_table = "run_last_ends"
        indexes = [
            models.Index(
                F("project_id"), F("finished_at").desc(), F("task").desc(), name="run_last_end_project"
            ),
            models.Index(fields=["project_id", "status"], name="run_last_end_status"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} {self.status}"
