"""Triggers: what starts a task by itself, and what the rules were at any moment (api.md, "Trigger")."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import pgettext_lazy

from apps.core import fields
from apps.projects.models import Project
from apps.tasks.models import Task

MAX_SCHEDULE = 255
MAX_CATCH_UP = 100
MAX_GRACE_MS = 86_400_000
MAX_JITTER_MS = 3_600_000
MIN_EVERY_MS = 1_000
MAX_EVERY_MS = 366 * 86_400_000


class Kind(models.TextChoices):
    CRON = "cron", pgettext_lazy("trigger kind", "Schedule")
    INTERVAL = "interval", pgettext_lazy("trigger kind", "Interval")
    ONCE = "once", pgettext_lazy("trigger kind", "Once")
    BOOT = "boot", pgettext_lazy("trigger kind", "On start")
    WEBHOOK = "webhook", pgettext_lazy("trigger kind", "Webhook")


class Misfire(models.TextChoices):
    SKIP = "skip", pgettext_lazy("misfire policy", "Skip what was missed")
    LATEST = "latest", pgettext_lazy("misfire policy", "Start once for all that was missed")
    ALL = "all", pgettext_lazy("misfire policy", "Start everything that was missed, up to a limit")


class Parked(models.TextChoices):
    """Why the scheduler does not look at a trigger although it is enabled."""

    TASK_DISABLED = "task_disabled"
    TASK_ARCHIVED = "task_archived"
    PROJECT_ARCHIVED = "project_archived"
    BROKEN = "trigger_broken"


class Trigger(models.Model):
    """`due_at` is the next due time by the rule, `fire_at` when the scheduler looks at it (due time and jitter).

    Both are null where nothing is to come. All columns are written under the lock of the task; `version` counts
    changes of the rule, not fires. `secret_digest` is the SHA-256 of a webhook's secret.
    """

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="triggers", db_index=False)
    kind = models.CharField(max_length=16, choices=Kind)
    schedule = models.CharField(max_length=MAX_SCHEDULE, null=True)  # noqa: DJ001
    timezone = models.CharField(max_length=64)
    every_ms = models.BigIntegerField(null=True)
    anchor_at = models.DateTimeField(null=True)
    at = models.DateTimeField(null=True)
    enabled = models.BooleanField(default=True)
    misfire = models.CharField(max_length=16, choices=Misfire, default=Misfire.LATEST)
    catch_up_max = models.PositiveSmallIntegerField(default=1)
    misfire_grace_ms = models.IntegerField(default=60_000)
    jitter_ms = models.IntegerField(default=0)
    input = models.JSONField(default=dict)
    secret_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001
    signing_key_ref = models.UUIDField(null=True)
    due_at = models.DateTimeField(null=True)
    fire_at = models.DateTimeField(null=True)
    parked = models.CharField(max_length=32, choices=Parked, null=True)  # noqa: DJ001
    last_fire_at = models.DateTimeField(null=True)
    last_run_id = models.UUIDField(null=True)
    author_type = models.CharField(max_length=32)
    author_id = models.CharField(max_length=255)
    version = models.IntegerField(default=1)
    created_at = fields.created_at()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "triggers"
        indexes = [
            models.Index(fields=["task", "id"], name="trigger_task"),
            models.Index(fields=["project", "fire_at"], name="trigger_project"),
            models.Index(fields=["fire_at"], condition=Q(fire_at__isnull=False), name="trigger_due"),
            models.Index(fields=["id"], condition=Q(kind="boot"), name="trigger_boot"),
            models.Index(fields=["author_id"], name="trigger_author"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["secret_digest"], condition=Q(secret_digest__isnull=False), name="trigger_secret"
            ),
            fields.one_of("kind", Kind.values, "trigger_kind_check"),
            fields.one_of("misfire", Misfire.values, "trigger_misfire_check"),
            fields.one_of("parked", Parked.values, "trigger_parked_check"),
            fields.at_least("version", 1, "trigger_version_check"),
            models.CheckConstraint(
                condition=Q(catch_up_max__gte=1, catch_up_max__lte=MAX_CATCH_UP),
                name="trigger_catch_up_check",
            ),
            models.CheckConstraint(
                condition=Q(misfire_grace_ms__gte=0, misfire_grace_ms__lte=MAX_GRACE_MS),
                name="trigger_grace_check",
            ),
            models.CheckConstraint(
                condition=Q(jitter_ms__gte=0, jitter_ms__lte=MAX_JITTER_MS), name="trigger_jitter_check"
            ),
            models.CheckConstraint(
                condition=Q(kind="cron", schedule__isnull=False, every_ms__isnull=True, at__isnull=True)
                | Q(
                    kind="interval",
                    schedule__isnull=True,
                    every_ms__gte=MIN_EVERY_MS,
                    anchor_at__isnull=False,
                )
                | Q(kind="once", schedule__isnull=True, every_ms__isnull=True, at__isnull=False)
                | Q(kind="boot", schedule__isnull=True, every_ms__isnull=True, at__isnull=True)
                | Q(
                    kind="webhook", schedule__isnull=True, every_ms__isnull=True, secret_digest__isnull=False
                ),
                name="trigger_rule_check",
            ),
            models.CheckConstraint(
                condition=Q(fire_at__isnull=True) | Q(enabled=True, due_at__isnull=False),
                name="trigger_fire_check",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class TriggerRevision(models.Model):
    """A trigger's rule from `created_at` on, and who set it; never changed, outlives the trigger.

    "Why did it not run?" is worked out from these. The last one of a deleted trigger says so.
    """

    id = fields.IdField()
    project_id = models.CharField(max_length=128)
    task_id = models.UUIDField()
    trigger_id = models.UUIDField()
    version = models.IntegerField()
    kind = models.CharField(max_length=16)
    schedule = models.CharField(max_length=MAX_SCHEDULE, null=True)  # noqa: DJ001
    timezone = models.CharField(max_length=64)
    every_ms = models.BigIntegerField(null=True)
    anchor_at = models.DateTimeField(null=True)
    at = models.DateTimeField(null=True)
    jitter_ms = models.IntegerField(default=0)
    enabled = models.BooleanField()
    deleted = models.BooleanField(default=False)
    changed_by_type = models.CharField(max_length=32)
    changed_by_id = models.CharField(max_length=255)
    created_at = fields.created_at()

    class Meta:
        db_table = "trigger_revisions"
        indexes = [models.Index(fields=["task_id", "created_at", "id"], name="trigger_revision_task")]
        constraints = [
            models.UniqueConstraint(fields=["trigger_id", "version"], name="trigger_revision_version"),
        ]

    def __str__(self) -> str:
        return f"{self.trigger_id} {self.version}"


class Switch(models.Model):
    """When a task or a whole project (`task_id` null) was switched on or off, and by whom; never changed."""

    class State(models.TextChoices):
        ENABLED = "enabled"
        DISABLED = "disabled"
        ARCHIVED = "archived"
        RESTORED = "restored"

    id = fields.IdField()
    project_id = models.CharField(max_length=128)
    task_id = models.UUIDField(null=True)
    state = models.CharField(max_length=16, choices=State)
    changed_by_type = models.CharField(max_length=32)
    changed_by_id = models.CharField(max_length=255)
    created_at = fields.created_at()

    class Meta:
        db_table = "trigger_switches"
        indexes = [
            models.Index(fields=["project_id", "task_id", "created_at"], name="trigger_switch_subject")
        ]
        constraints = [
            fields.one_of("state", ["enabled", "disabled", "archived", "restored"], "switch_state")
        ]

    def __str__(self) -> str:
        return self.state


class Boot(models.Model):
    """A start of `up`: the first scheduler that sees it makes the boot triggers due, the others find it done."""

    id = fields.IdField()
    created_at = fields.created_at()

    class Meta:
        db_table = "trigger_boots"

    def __str__(self) -> str:
        return str(self.id)


class ClockJump(models.Model):
    """The system's clock was set: `by_ms` forwards, or backwards where negative. Written by a scheduler."""

    id = fields.IdField()
    node = models.CharField(max_length=64)
    by_ms = models.BigIntegerField()
    created_at = fields.created_at()

    class Meta:
        db_table = "trigger_clock_jumps"
        indexes = [models.Index(fields=["created_at"], name="trigger_clock_jump_at")]

    def __str__(self) -> str:
        return f"{self.by_ms} ms"
