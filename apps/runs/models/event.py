"""What happened to a run, in order, without a gap (runs.md §3.3, §4.4)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.core import fields
from apps.runs.models.run import Run

ACTOR_TYPES = (
    "user", "api_app", "trigger", "agent", "mcp_client", "worker", "executor", "system", "legacy_shell",
    "scheduler", "reconciler", "compatibility",
)  # fmt: skip


class RunEvent(models.Model):
    """Never updated; deleted only together with its run, by retention."""

    id = fields.IdField()
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events", db_index=False)
    sequence = models.IntegerField()
    type = models.CharField(max_length=128)
    dedupe_key = models.CharField(max_length=255, null=True)  # noqa: DJ001
    actor_type = models.CharField(max_length=64)
    actor_id = models.CharField(max_length=255, null=True)  # noqa: DJ001
    # No foreign key: an event outlives what it speaks of, and each one costs the hot path a look-up.
    attempt_id = models.UUIDField(null=True)
    payload = models.JSONField(default=dict)
    created_at = fields.created_at()

    class Meta:
        db_table = "run_events"
        constraints = [
            models.UniqueConstraint(fields=["run", "sequence"], name="run_event_sequence"),
            models.UniqueConstraint(
                fields=["run", "dedupe_key"], condition=Q(dedupe_key__isnull=False), name="run_event_dedupe"
            ),
            fields.at_least("sequence", 1, "run_event_sequence_check"),
            fields.one_of("actor_type", ACTOR_TYPES, "run_event_actor_check"),
        ]

    def __str__(self) -> str:
        return f"{self.sequence} {self.type}"
