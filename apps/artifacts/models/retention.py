"""Which logs lie on the disk, by which rules they go, and what was removed (secrets-and-artifacts.md §7)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from apps.core import fields
from apps.projects.models import Project
from apps.runs.models import RunAttempt
from apps.tasks.models import Task

SCOPE = "retention"
KEEP_MS_MIN = 60_000
KEEP_MS_MAX = 365 * 86_400_000
KEEP_MOST_MAX = 1_000_000
KEEP_LEAST_MAX = 1_000
KEEP_BYTES_MIN = 65_536
KEEP_BYTES_MAX = 2**53 - 1


class ArtifactRetention(models.Model):
    """The tombstone of an attempt's files: written after they were deleted, never changed (§7.1)."""

    class Disposition(models.TextChoices):
        DELETED = "deleted"
        ALREADY_ABSENT = "already_absent"

    attempt = models.OneToOneField(
        RunAttempt, on_delete=models.CASCADE, primary_key=True, related_name="retention"
    )
    log_artifact_id = models.CharField(max_length=36)
    finished_at = models.DateTimeField()
    eligible_at = models.DateTimeField()
    disposition = models.CharField(max_length=16, choices=Disposition)
    bytes_reclaimed = models.BigIntegerField()
    recorded_at = models.DateTimeField()

    class Meta:
        db_table = "artifact_retentions"
        indexes = [models.Index(fields=["recorded_at", "attempt"], name="artifact_retention_recorded")]
        constraints = [
            fields.one_of("disposition", ["deleted", "already_absent"], "artifact_retention_disposition"),
            fields.at_least("bytes_reclaimed", 0, "artifact_retention_bytes_check"),
            fields.not_before("eligible_at", "finished_at", "artifact_retention_eligible"),
            fields.not_before("recorded_at", "eligible_at", "artifact_retention_recorded_at"),
            models.CheckConstraint(
                condition=Q(disposition="deleted") | Q(bytes_reclaimed=0), name="artifact_retention_absent"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.attempt_id} {self.disposition}"


class ArtifactMaintenanceCursor(models.Model):
    """How far the sweep has come; `version` is what a writer must have read (§7.2)."""

    scope = models.CharField(primary_key=True, max_length=32)
    cursor_finished_at = models.DateTimeField(null=True)
    cursor_attempt_id = models.UUIDField(null=True)
    version = models.BigIntegerField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "artifact_maintenance_cursors"
        constraints = [
            fields.one_of("scope", [SCOPE], "artifact_cursor_scope_check"),
            fields.at_least("version", 1, "artifact_cursor_version_check"),
            models.CheckConstraint(
                condition=Q(cursor_finished_at__isnull=True, cursor_attempt_id__isnull=True)
                | Q(cursor_finished_at__isnull=False, cursor_attempt_id__isnull=False),
                name="artifact_cursor_pair_check",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.version}"


class UnlistedRun(models.Model):
    """An ended run whose logs are not listed yet: written with the totals, removed by the listing."""

    run_id = models.UUIDField(primary_key=True)

    class Meta:
        db_table = "artifact_unlisted_runs"

    def __str__(self) -> str:
        return str(self.run_id)


class StoredLog(models.Model):
    """The files of one attempt of an ended run, as long as they lie on the disk: what retention walks over.

    The index of what is removable has to be small and of its own: attempts whose logs went months ago are in none.
    `bytes` and `files` are what was found when it was listed, collected files included.
    """

    attempt = models.OneToOneField(
        RunAttempt, on_delete=models.PROTECT, primary_key=True, related_name="stored_log"
    )
    run_id = models.UUIDField()
    project_id = models.CharField(max_length=128)
    task_id = models.UUIDField()
    log_artifact_id = models.CharField(max_length=36)
    finished_at = models.DateTimeField()
    succeeded = models.BooleanField()
    bytes = models.BigIntegerField()
    files = models.PositiveIntegerField()

    class Meta:
        db_table = "artifact_stored_logs"
        indexes = [
            models.Index(fields=["finished_at", "attempt"], name="stored_log_age"),
            models.Index(fields=["project_id", "finished_at", "attempt"], name="stored_log_project"),
            models.Index(fields=["task_id", "finished_at", "attempt"], name="stored_log_task"),
            models.Index(
                fields=["task_id", "finished_at", "attempt"],
                condition=Q(succeeded=True),
                name="stored_log_success",
            ),
            models.Index(fields=["run_id"], name="stored_log_run"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["log_artifact_id"], name="stored_log_artifact"),
            fields.at_least("bytes", 0, "stored_log_bytes_check"),
        ]

    def __str__(self) -> str:
        return self.log_artifact_id


class StoredTotal(models.Model):
    """How many logs of a task lie on the disk, and their bytes: nobody counts them."""

    task_id = models.UUIDField(primary_key=True)
    project_id = models.CharField(max_length=128)
    logs = models.BigIntegerField()
    bytes = models.BigIntegerField()

    class Meta:
        db_table = "artifact_stored_totals"
        indexes = [models.Index(fields=["project_id", "task_id"], name="stored_total_project")]
        constraints = [
            fields.at_least("logs", 0, "stored_total_logs_check"),
            fields.at_least("bytes", 0, "stored_total_bytes_check"),
        ]

    def __str__(self) -> str:
        return f"{self.task_id} {self.logs}"


class RetentionRule(models.Model):
    """What a project, or one task of it, keeps; a null takes what stands above it.

    `keep_ms` and `keep_least` are inherited from instance to project to task; `keep_most` and `keep_bytes` bound
    the project or the task that names them.
    """

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    task = models.ForeignKey(Task, on_delete=models.PROTECT, null=True, related_name="+", db_index=False)
    keep_ms = models.BigIntegerField(null=True)
    keep_most = models.IntegerField(null=True)
    keep_bytes = models.BigIntegerField(null=True)
    keep_least = models.IntegerField(null=True)
    version = models.IntegerField(default=1)
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "retention_rules"
        constraints = [
            models.UniqueConstraint(
                fields=["project"], condition=Q(task__isnull=True), name="retention_rule_project"
            ),
            models.UniqueConstraint(
                fields=["task"], condition=Q(task__isnull=False), name="retention_rule_task"
            ),
            models.CheckConstraint(
                condition=Q(keep_ms__isnull=True) | Q(keep_ms__gte=KEEP_MS_MIN, keep_ms__lte=KEEP_MS_MAX),
                name="retention_rule_keep_ms",
            ),
            models.CheckConstraint(
                condition=Q(keep_most__isnull=True) | Q(keep_most__gte=1, keep_most__lte=KEEP_MOST_MAX),
                name="retention_rule_keep_most",
            ),
            models.CheckConstraint(
                condition=Q(keep_bytes__isnull=True) | Q(keep_bytes__gte=KEEP_BYTES_MIN),
                name="retention_rule_keep_bytes",
            ),
            models.CheckConstraint(
                condition=Q(keep_least__isnull=True) | Q(keep_least__gte=0, keep_least__lte=KEEP_LEAST_MAX),
                name="retention_rule_keep_least",
            ),
            fields.at_least("version", 1, "retention_rule_version"),
        ]

    def __str__(self) -> str:
        return f"{self.project_id} {self.task_id or ''}"


class Removal(models.TextChoices):
    """By which rule something went."""

    AGE = "age"
    PRESSURE = "pressure"
    COUNT = "count"
    BYTES = "bytes"
    ORPHAN = "orphan"
    HISTORY = "history"
    SKIPS = "skips"


class RetentionReceipt(models.Model):
    """The bill of one day: what a rule removed of a project (empty = of the instance)."""

    id = fields.IdField()
    project_id = models.CharField(max_length=128, blank=True)
    day = models.DateField()
    rule = models.CharField(max_length=16, choices=Removal)
    items = models.BigIntegerField()
    files = models.BigIntegerField()
    bytes = models.BigIntegerField()
    oldest_at = models.DateTimeField()
    newest_at = models.DateTimeField()

    class Meta:
        db_table = "retention_receipts"
        indexes = [
            models.Index(F("project_id"), F("day").desc(), F("id").desc(), name="retention_receipt_project")
        ]
        constraints = [
            models.UniqueConstraint(fields=["project_id", "day", "rule"], name="retention_receipt_key"),
            fields.one_of("rule", Removal.values, "retention_receipt_rule"),
            fields.at_least("items", 1, "retention_receipt_items"),
            fields.at_least("bytes", 0, "retention_receipt_bytes"),
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.rule} {self.items}"


class Orphan(models.Model):
    """Files under the folder of the logs that no attempt names; removed once they were seen twice, a day apart."""

    log_artifact_id = models.CharField(primary_key=True, max_length=36)
    bytes = models.BigIntegerField()
    files = models.PositiveIntegerField()
    touched_at = models.DateTimeField()
    first_seen_at = models.DateTimeField()

    class Meta:
        db_table = "artifact_orphans"
        indexes = [models.Index(fields=["first_seen_at"], name="artifact_orphan_seen")]

    def __str__(self) -> str:
        return self.log_artifact_id
