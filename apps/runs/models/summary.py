"""What stays of the history of an old run."""

from __future__ import annotations

from django.db import models

from apps.core import fields
from apps.runs.models.run import Run


class RunSummary(models.Model):
    """Stands for attempts, events, leases and deliveries that were folded into it; never changed, never removed.

    `tries` tells each attempt in short. While there is no summary of a run, the database refuses to delete its
    history; for a run that goes on or is held it refuses the summary.
    """

    run = models.OneToOneField(Run, on_delete=models.PROTECT, primary_key=True, related_name="summary")
    attempts = models.PositiveIntegerField()
    events = models.PositiveIntegerField()
    exit_code = models.IntegerField(null=True)
    log_bytes = models.BigIntegerField(default=0)
    tries = models.JSONField(default=list)
    folded_at = models.DateTimeField()

    class Meta:
        db_table = "run_summaries"
        constraints = [fields.at_least("log_bytes", 0, "run_summary_bytes_check")]

    def __str__(self) -> str:
        return str(self.run_id)
