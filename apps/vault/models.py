"""Sealed payloads and recipes of environments (upper-floors.md §2, secrets-and-artifacts.md §4)."""

from __future__ import annotations

from django.db import models

from apps.core import fields


class SealedPayload(models.Model):
    """A value that only its purpose's subkey opens, bound to project, holder and its own id."""

    id = fields.IdField()
    purpose = models.CharField(max_length=64)
    project_id = models.CharField(max_length=128)
    holder_type = models.CharField(max_length=32)
    holder_id = models.CharField(max_length=255)
    schema_id = models.CharField(max_length=64)
    key_id = models.CharField(max_length=128)
    hash = models.CharField(max_length=64)
    size = models.PositiveIntegerField()
    ciphertext = models.TextField(editable=False)
    created_at = fields.created_at()
    expires_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "vault_sealed_payloads"
        indexes = [
            models.Index(fields=["purpose", "key_id", "id"], name="vault_sealed_payload_key"),
            models.Index(fields=["holder_type", "holder_id"], name="vault_sealed_payload_holder"),
        ]
        constraints = [
            models.CheckConstraint(condition=models.Q(size__lte=65_536), name="vault_sealed_payload_size")
        ]

    def __str__(self) -> str:
        return str(self.id)


class ExecutionContextRecipe(models.Model):
    """How to build an environment, addressed by its content; never holds a secret value."""

    context_ref = models.CharField(primary_key=True, max_length=512)
    environment_recipe = models.TextField()
    content_digest = models.CharField(max_length=64)
    created_at = fields.created_at()

    class Meta:
        db_table = "local_execution_context_recipes"
        indexes = [models.Index(fields=["created_at", "context_ref"], name="local_context_recipes_created")]

    def __str__(self) -> str:
        return self.context_ref
