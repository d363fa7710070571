"""What proves a person beside the password; passkeys have their tables in `django_otp_webauthn`."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django_otp.models import Device, ThrottlingMixin

from apps.core import fields


class CodeApp(ThrottlingMixin, Device):  # type: ignore[misc]
    """The app that shows a person codes of six digits (RFC 6238); its key is sealed, one per person.

    `last_step` is the newest step a code was taken for: no step counts twice.
    """

    id = fields.IdField()
    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="code_app")
    key = models.OneToOneField("vault.SealedPayload", on_delete=models.PROTECT)
    last_step = models.BigIntegerField(default=-1)
    created_at = fields.created_at()
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_code_apps"

    def get_throttle_factor(self) -> int:
        """Seconds to wait after the first wrong code; they double with each."""
        return 1


class RecoveryCode(models.Model):
    """A digest of one code for the day the other factor is lost; it works once."""

    id = fields.IdField()
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="recovery_codes", db_index=False
    )
    digest = models.CharField(max_length=64, editable=False)
    created_at = fields.created_at()
    used_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_recovery_codes"
        constraints = [models.UniqueConstraint(fields=["user", "digest"], name="access_recovery_code_digest")]

    def __str__(self) -> str:
        return str(self.id)
