"""How often something happened to logs and files, day by day; for figures, not for decisions."""

from __future__ import annotations

from django.db import models

from apps.core import fields


class ArtifactTally(models.Model):
    """A number per day (UTC) and kind."""

    class Kind(models.TextChoices):
        QUOTA_HIT = "quota_hit"
        INCOMPLETE = "incomplete"
        MISSING_READ = "missing_read"

    id = fields.IdField()
    day = models.DateField()
    kind = models.CharField(max_length=16, choices=Kind)
    count = models.BigIntegerField()

    class Meta:
        db_table = "artifact_tallies"
        constraints = [
            models.UniqueConstraint(fields=["day", "kind"], name="artifact_tally_day"),
            fields.one_of("kind", ["quota_hit", "incomplete", "missing_read"], "artifact_tally_kind"),
            fields.at_least("count", 1, "artifact_tally_count"),
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.kind}"
