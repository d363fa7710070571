"""Secrets, sealed payloads and recipes of environments (secrets-and-artifacts.md §3, §4, upper-floors.md §2)."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import models
from django.db.models.functions import Length
from django.db.models.lookups import Exact, LessThanOrEqual

from apps.core import fields
from apps.projects.models import Project


class Secret(models.Model):
    """A name that tasks refer to: whether it may be used, and who holds its values. The values are envelopes."""

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=128)
    # Where values lie: here (""), or with a provider, whose key the envelopes then hold instead.
    provider = models.CharField(max_length=32, blank=True, default="")
    disabled_at = models.DateTimeField(null=True)
    created_at = fields.created_at()

    class Meta:
        db_table = "vault_secrets"
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="vault_secret_name")]

    def __str__(self) -> str:
        return self.name


class SecretSwitch(models.Model):
    """One disabling or enabling of a secret, for ever: a call that comes again finds what it did."""

    id = fields.IdField()
    secret = models.ForeignKey(Secret, on_delete=models.PROTECT, related_name="+", db_index=False)
    mutation_id = models.CharField(max_length=64)
    enabled = models.BooleanField()
    created_at = fields.created_at()

    class Meta:
        db_table = "vault_secret_switches"
        constraints = [
            models.UniqueConstraint(fields=["secret", "mutation_id"], name="vault_secret_switch_mutation")
        ]

    def __str__(self) -> str:
        return self.mutation_id


class SecretEnvelope(models.Model):
    """One version of a secret, sealed; never changed, never removed. The highest version is the current one."""

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    secret_name = models.CharField(max_length=128)
    version = models.IntegerField()
    mutation_id = models.CharField(max_length=64)
    key_id = models.CharField(max_length=128)
    algorithm = models.CharField(max_length=32)
    nonce = models.BinaryField()
    ciphertext = models.BinaryField()
    auth_tag = models.BinaryField()
    created_at = models.DateTimeField(editable=False)

    class Meta:
        db_table = "local_secret_envelopes"
        indexes = [
            models.Index(
                models.F("project"),
                models.F("secret_name"),
                models.F("version").desc(),
                name="local_secret_current_idx",
            ),
            models.Index(fields=["key_id", "project", "secret_name", "version"], name="local_secret_key_idx"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "secret_name", "version"], name="local_secret_version_idx"
            ),
            models.UniqueConstraint(
                fields=["project", "secret_name", "mutation_id"], name="local_secret_mutation_idx"
            ),
            models.CheckConstraint(
                condition=models.Q(version__gte=1, version__lte=fields.MAX_VERSION),
                name="local_secret_envelopes_version_check",
            ),
            models.CheckConstraint(
                condition=models.Q(created_at__gte=datetime(1970, 1, 1, tzinfo=UTC)),
                name="local_secret_envelopes_created_at_check",
            ),
            models.CheckConstraint(
                condition=models.Q(algorithm="aes-256-gcm")
                & ~models.Q(secret_name="")
                & ~models.Q(key_id=""),
                name="local_secret_envelopes_kind_check",
            ),
            models.CheckConstraint(
                condition=models.Q(Exact(Length("nonce"), 12))
                & models.Q(Exact(Length("auth_tag"), 16))
                & models.Q(LessThanOrEqual(Length("ciphertext"), 65_536)),
                name="local_secret_envelopes_size_check",
            ),
        ]

    def __str__(self) -> str:
        return str(self.version)


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
