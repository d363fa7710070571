"""Tasks and the immutable revisions of what they execute (runs.md §3.9, api.md)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower

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
    # Of the template, for starts: the key of the labels that a worker must have (apps.tasks.placement).
    requires = models.CharField(max_length=1024, blank=True, default="")
    # Of the template, for starts: whether it names secrets, which takes a right of its own.
    uses_secrets = models.BooleanField(default=False)
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
    # The rule that each run gets at its start (apps.tasks.retry); None = nothing is tried again by itself.
    retry = models.JSONField(null=True)
    revision = models.ForeignKey(
        TaskExecutionRevision, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    # Whether nobody starts it alone (docs/approvals.md); only `policy.manage` takes it back.
    requires_approval = models.BooleanField(default=False)
    # Which example of the first minute this is; None from the first change on, when it is somebody's own.
    example = models.CharField(max_length=32, null=True)  # noqa: DJ001
    # By what it was made, so that the same form sent again finds it: a digest, None where nobody said one.
    creation_key = models.CharField(max_length=64, null=True, editable=False)  # noqa: DJ001
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
            models.Index(models.F("project"), Lower("name"), models.F("id"), name="task_project_name"),
            models.Index(
                fields=["project", "example"],
                condition=Q(example__isnull=False, archived_at__isnull=True),
                name="task_project_example",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "slug"], condition=Q(archived_at__isnull=True), name="task_project_slug"
            ),
            models.UniqueConstraint(
                fields=["project", "creation_key"],
                condition=Q(creation_key__isnull=False),
                name="task_creation_key",
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


class TaskSecret(models.Model):
    """That a task's present revision names a secret: who is concerned when one is disabled."""

    id = fields.IdField()
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="+", db_index=False)
    project_id = models.CharField(max_length=128)
    secret_name = models.CharField(max_length=128)

    class Meta:
        db_table = "task_secrets"
        indexes = [models.Index(fields=["project_id", "secret_name", "task"], name="task_secret_users")]
        constraints = [models.UniqueConstraint(fields=["task", "secret_name"], name="task_secret_key")]

    def __str__(self) -> str:
        return self.secret_name


class SavedView(models.Model):
    """A person's own way to look at the tasks of a project: what is shown, in which order, how close together."""

    class Order(models.TextChoices):
        USUAL = "usual"
        NAME = "name"
        NAME_DOWN = "-name"
        NEXT = "next"
        NEXT_DOWN = "-next"
        LAST = "last"
        LAST_DOWN = "-last"

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    subject_id = models.CharField(max_length=128)
    name = models.CharField(max_length=64)
    position = models.PositiveSmallIntegerField()
    search = models.CharField(max_length=200, blank=True, default="")
    order = models.CharField(max_length=16, choices=Order, default=Order.USUAL)
    compact = models.BooleanField(default=False)
    hidden = models.JSONField(default=list)
    created_at = fields.created_at()

    class Meta:
        db_table = "task_saved_views"
        constraints = [
            models.UniqueConstraint(fields=["project", "subject_id", "name"], name="task_saved_view_name"),
            fields.one_of(
                "order", ["usual", "name", "-name", "next", "-next", "last", "-last"], "task_saved_view_order"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Batch(models.Model):
    """One action on all tasks that match a search, carried out in the background as whoever asked for it.

    Ids are in the order of making: tasks behind `cursor` and made before the batch are still to come.
    """

    class State(models.TextChoices):
        RUNNING = "running"
        DONE = "done"
        STOPPED = "stopped"
        DENIED = "denied"

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    subject_type = models.CharField(max_length=32)
    subject_id = models.CharField(max_length=255)
    language = models.CharField(max_length=16)
    action = models.CharField(max_length=32)
    value = models.CharField(max_length=64, blank=True, default="")
    search = models.CharField(max_length=200, blank=True, default="")
    show = models.CharField(max_length=16, blank=True, default="")
    state = models.CharField(max_length=16, choices=State, default=State.RUNNING)
    cursor = models.UUIDField(null=True)
    done = models.IntegerField(default=0)
    refused = models.IntegerField(default=0)
    refusals = models.JSONField(default=list)
    created_at = fields.created_at()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "task_batches"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "subject_id"], condition=Q(state="running"), name="task_batch_running"
            ),
            fields.one_of("state", ["running", "done", "stopped", "denied"], "task_batch_state"),
            models.CheckConstraint(
                condition=Q(state="running", finished_at__isnull=True)
                | (~Q(state="running") & Q(finished_at__isnull=False)),
                name="task_batch_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.done}"
