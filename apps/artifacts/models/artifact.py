"""Files that scripts left in QINGLONG_ARTIFACTS."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Length
from django.db.models.lookups import Exact

from apps.artifacts.collected import FILES_MAX, NAME_MAX
from apps.core import fields
from apps.runs.models import Run, RunAttempt


class Artifact(models.Model):
    """One file of an attempt, written with its end and never changed.

    `position` (1–100) is its name on disk, `name` the relative path that the script gave it, made safe to show.
    """

    id = fields.IdField()
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="artifacts", db_index=False)
    attempt = models.ForeignKey(
        RunAttempt, on_delete=models.PROTECT, related_name="artifacts", db_index=False
    )
    position = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=NAME_MAX)
    content_type = models.CharField(max_length=64)
    size = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    created_at = fields.created_at()

    class Meta:
        db_table = "run_artifacts"
        constraints = [
            models.UniqueConstraint(fields=["attempt", "position"], name="run_artifact_position"),
            models.UniqueConstraint(fields=["attempt", "name"], name="run_artifact_name"),
            models.CheckConstraint(
                condition=models.Q(position__gte=1, position__lte=FILES_MAX),
                name="run_artifact_position_check",
            ),
            fields.at_least("size", 0, "run_artifact_size_check"),
            models.CheckConstraint(condition=Exact(Length("sha256"), 64), name="run_artifact_digest_check"),
            models.CheckConstraint(condition=~models.Q(name=""), name="run_artifact_name_check"),
        ]
        indexes = [models.Index(fields=["run", "attempt", "position"], name="run_artifact_list")]

    def __str__(self) -> str:
        return self.name
