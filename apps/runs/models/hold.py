"""Why a run must stay as it is, although a rule would let its log or its history go."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.core import fields
from apps.runs.models.run import Run

PIN = "pin"


class RunHold(models.Model):
    """One reason to keep a run whole: `holder` says whose it is (`pin` = people's), `holder_id` which one of them."""

    id = fields.IdField()
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="holds", db_index=False)
    holder = models.CharField(max_length=32)
    holder_id = models.CharField(max_length=255, blank=True, default="")
    reason = models.CharField(max_length=200, blank=True, default="")
    held_by_type = models.CharField(max_length=32)
    held_by_id = models.CharField(max_length=255)
    created_at = fields.created_at()

    class Meta:
        db_table = "run_holds"
        constraints = [
            models.UniqueConstraint(fields=["run", "holder", "holder_id"], name="run_hold_key"),
            models.CheckConstraint(condition=~Q(holder=""), name="run_hold_holder_check"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.holder}"
