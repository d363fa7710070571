"""What single sign-on keeps: what was used already, and the last sign-ins for whoever must find a fault."""

from __future__ import annotations

from django.db import models

from apps.core import fields


class UsedOnce(models.Model):
    """The digest of a state or of a logout token; a second use is refused. Kept while it could be valid."""

    digest = models.CharField(primary_key=True, max_length=64)
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "access_used_once"
        indexes = [models.Index(fields=["expires_at"], name="access_used_once_expiry")]

    def __str__(self) -> str:
        return self.digest[:8]


class KnownIssuer(models.Model):
    """Whose people the bindings of a provider are: `sub` means nothing without its issuer (§6.4.1)."""

    provider = models.CharField(primary_key=True, max_length=64)
    issuer = models.CharField(max_length=2048)

    class Meta:
        db_table = "access_known_issuers"

    def __str__(self) -> str:
        return self.provider


class ProviderSignIn(models.Model):
    """One of the last sign-ins through a provider; claims are masked before they come here."""

    class Outcome(models.TextChoices):
        SIGNED_IN = "signed_in"
        LINKED = "linked"
        REFUSED = "refused"

    id = fields.IdField()
    provider = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=Outcome)
    reason = models.CharField(max_length=64, blank=True, default="")
    reference = models.CharField(max_length=16, blank=True, default="")
    username = models.CharField(max_length=64, blank=True, default="")
    skew_ms = models.BigIntegerField(null=True)
    claims = models.JSONField(default=dict)
    roles = models.JSONField(default=list)
    at = fields.created_at()

    class Meta:
        db_table = "access_provider_sign_ins"
        indexes = [
            models.Index(fields=["provider", "outcome", "at", "id"], name="access_provider_sign_in_recent")
        ]
        constraints = [
            fields.one_of("outcome", ["signed_in", "linked", "refused"], "access_provider_sign_in_outcome")
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.outcome}"
