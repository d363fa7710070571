"""Who is who: stable subjects and the sign-in methods bound to them (projects-and-identity.md §3.4, §3.5)."""

from __future__ import annotations

from django.db import models

from apps.core import fields


class SubjectType(models.TextChoices):
    USER = "user"
    API_APP = "api_app"
    MCP_CLIENT = "mcp_client"
    AGENT = "agent"
    SYSTEM = "system"
    WORKER = "worker"


class IdentitySubject(models.Model):
    """One person, application, agent or machine; the id never changes and never says who it is."""

    class Status(models.TextChoices):
        ACTIVE = "active"
        DISABLED = "disabled"

    id = models.CharField(primary_key=True, max_length=255, editable=False)
    type = models.CharField(max_length=32, choices=SubjectType)
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    version = models.IntegerField(default=1)
    created_at = fields.created_at()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "identity_subjects"
        indexes = [models.Index(fields=["type", "status", "id"], name="identity_subject_status_idx")]
        constraints = [
            fields.one_of("type", SubjectType.values, "identity_subject_type_check"),
            fields.one_of("status", ["active", "disabled"], "identity_subject_status_check"),
            fields.at_least("version", 1, "identity_subject_version_check"),
            fields.not_before("updated_at", "created_at", "identity_subject_updated_at_check"),
        ]

    def __str__(self) -> str:
        return self.id


class IdentityAuthenticationBinding(models.Model):
    """A version of the tie between an external identity and a subject; rows are never changed."""

    class State(models.TextChoices):
        ACTIVE = "active"
        REVOKED = "revoked"

    id = fields.IdField()
    provider = models.CharField(max_length=64)
    provider_subject = models.CharField(max_length=128)
    version = models.IntegerField()
    state = models.CharField(max_length=16, choices=State)
    subject = models.ForeignKey(
        IdentitySubject, on_delete=models.PROTECT, related_name="bindings", db_index=False
    )
    created_at = fields.created_at()

    class Meta:
        db_table = "identity_authentication_bindings"
        indexes = [
            models.Index(
                "provider",
                "provider_subject",
                models.F("version").desc(),
                name="identity_auth_binding_current",
            ),
            models.Index(
                "subject",
                "provider",
                "provider_subject",
                models.F("version").desc(),
                name="identity_auth_binding_subject",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "provider_subject", "version"], name="identity_auth_binding_version"
            ),
            fields.one_of("state", ["active", "revoked"], "identity_auth_binding_state_check"),
            fields.at_least("version", 1, "identity_auth_binding_version_check"),
        ]

    def __str__(self) -> str:
        return f"{self.provider} v{self.version}"
