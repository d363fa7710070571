"""Who acts: the subject of a request and how sure the sign-in was (projects-and-identity.md §3.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from apps.core import clock, ids
from apps.core.errors import InvalidInput, Unauthenticated
from apps.identity.models import SubjectType

_AUTHENTICATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TYPES = frozenset(SubjectType.values)


class Assurance(StrEnum):
    """How the subject proved itself."""

    SINGLE_FACTOR = "single_factor"
    MULTI_FACTOR = "multi_factor"
    SERVICE = "service"
    HARDWARE = "hardware"
    LOCAL_CONSOLE = "local_console"


class PrincipalExpired(Unauthenticated):
    code = "authenticated_principal_expired"
    message = _("The sign-in has expired; sign in again.")


@dataclass(frozen=True)
class PolicySubject:
    """A caller, grantee or actor: one of the six types, an id of 1–255 characters; raises InvalidInput."""

    type: str
    id: str

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise InvalidInput.field("subject_type", _("Not a subject type."))
        if not ids.is_text_id(self.id, 255):
            raise InvalidInput.field("subject_id", _("1 to 255 characters without control characters."))

    @property
    def pair(self) -> tuple[str, str]:
        """Type and id, as the audit trail takes them."""
        return (str(self.type), self.id)


@dataclass(frozen=True)
class Principal:
    """An authenticated subject. It carries no role, scope or permission.

    Raises InvalidInput where a value breaks §3.6.
    """

    subject: PolicySubject
    authentication_id: str
    authenticated_at: datetime
    expires_at: datetime
    assurance: Assurance

    def __post_init__(self) -> None:
        if _AUTHENTICATION_ID.fullmatch(self.authentication_id) is None:
            raise InvalidInput.field("authentication_id", _("Not an authentication id."))
        if self.expires_at <= self.authenticated_at:
            raise InvalidInput.field("expires_at", _("Must be after the sign-in."))
        if self.assurance not in set(Assurance):
            raise InvalidInput.field("assurance", _("Not an assurance."))

    def require_active(self, now: datetime | None = None) -> None:
        """Raises PrincipalExpired unless `authenticated_at <= now < expires_at`."""
        if not self.authenticated_at <= (now or clock.now()) < self.expires_at:
            raise PrincipalExpired
