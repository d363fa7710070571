"""Second factors: codes of an app, recovery codes, passkeys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apps.access.models import User


@dataclass(frozen=True)
class Factors:
    """What a person has beside the password."""

    code_app: bool
    passkeys: int
    recovery_codes: int

    @property
    def any(self) -> bool:
        """Whether the password alone does not sign them in."""
        return self.code_app or self.passkeys > 0


def factors_of(user: User) -> Factors:
    """Three counts, for pages."""
    from django_otp_webauthn.models import WebAuthnCredential

    from apps.access.models import CodeApp, RecoveryCode

    return Factors(
        CodeApp.objects.filter(user=user, confirmed=True).exists(),
        WebAuthnCredential.objects.filter(user=user, confirmed=True).count(),
        RecoveryCode.objects.filter(user=user, used_at=None).count(),
    )
