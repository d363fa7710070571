"""The audit trail: one hash chain per project and one for the instance (architecture.md §3, workflows.md §9.4).

The scope is text and actors and subjects are pairs, without foreign keys, so that the trail outlives everything
it speaks of.
"""

from __future__ import annotations

from django.db import models

from apps.core import fields


class AuditChain(models.Model):
    """The head of one chain; `scope` is a project id, or empty for the instance."""

    scope = models.CharField(primary_key=True, max_length=128)
    sequence = models.BigIntegerField(default=0)
    hash = models.CharField(max_length=64, null=True)  # noqa: DJ001

    class Meta:
        db_table = "audit_chains"
        constraints = [fields.at_least("sequence", 0, "audit_chain_sequence_check")]

    def __str__(self) -> str:
        return self.scope or "instance"


class AuditEntry(models.Model):
    """One act of a principal; never changed, never deleted."""

    id = fields.IdField()
    scope = models.CharField(max_length=128)
    sequence = models.BigIntegerField()
    actor_type = models.CharField(max_length=32)
    actor_id = models.CharField(max_length=255)
    on_behalf_of = models.CharField(max_length=288, null=True)  # noqa: DJ001
    origin = models.CharField(max_length=64)
    action = models.CharField(max_length=128)
    subject_type = models.CharField(max_length=64)
    subject_id = models.CharField(max_length=255)
    metadata = models.JSONField(default=dict)
    occurred_at = fields.created_at()
    previous_hash = models.CharField(max_length=64, null=True)  # noqa: DJ001
    hash = models.CharField(max_length=64)

    class Meta:
        db_table = "audit_entries"
        indexes = [
            models.Index(fields=["scope", "action", "sequence"], name="audit_entry_action"),
            models.Index(fields=["scope", "actor_id", "sequence"], name="audit_entry_actor"),
            models.Index(fields=["scope", "occurred_at"], name="audit_entry_time"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["scope", "sequence"], name="audit_entry_sequence"),
            fields.at_least("sequence", 1, "audit_entry_sequence_check"),
        ]

    def __str__(self) -> str:
        return f"{self.scope}#{self.sequence} {self.action}"
