"""Named errors: every refusal has a code, an HTTP status and a word on whether trying again helps.

`code` is lower_snake_case for the API; what a run stores keeps the spec's upper case (architecture.md §4).
Messages are fixed sentences: no ids, values, paths or secrets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class Retry(StrEnum):
    """Whether the same call may succeed later."""

    NEVER = "never"
    CONFLICT = "conflict"
    RECOVERABLE = "recoverable"


class DomainError(Exception):
    """The root of all refusals. `extra` holds members that the API answer carries beside the code."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retry: ClassVar[Retry] = Retry.NEVER
    message: ClassVar[str | Promise] = _("Something went wrong.")

    def __init__(self, detail: str | Promise | None = None, **extra: Any) -> None:
        self.detail = detail if detail is not None else self.message
        self.extra = extra
        super().__init__(self.code)

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class InvalidInput(DomainError):
    """Refused before anything was read or written. `fields` maps a field to its sentences."""

    code = "invalid"
    status = 400
    message = _("The request is not valid.")

    def __init__(
        self,
        detail: str | Promise | None = None,
        *,
        fields: dict[str, list[str | Promise]] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail, **extra)
        self.fields = fields or {}

    @classmethod
    def field(cls, name: str, sentence: str | Promise) -> InvalidInput:
        """An error about one field."""
        return cls(fields={name: [sentence]})


class Unauthenticated(DomainError):
    code = "not_authenticated"
    status = 401
    message = _("Sign in first.")


class Forbidden(DomainError):
    code = "permission_denied"
    status = 403
    message = _("Your role does not allow this.")


class NotFound(DomainError):
    code = "not_found"
    status = 404
    message = _("There is nothing here.")


class Conflict(DomainError):
    code = "conflict"
    status = 409
    retry = Retry.CONFLICT
    message = _("The thing has changed meanwhile.")


class VersionConflict(Conflict):
    code = "version_conflict"

    def __init__(self, current_version: int | None = None, **extra: Any) -> None:
        if current_version is not None:
            extra["current_version"] = current_version
        super().__init__(**extra)


class Gone(DomainError):
    code = "gone"
    status = 410
    message = _("This was removed.")


class TooLarge(DomainError):
    code = "too_large"
    status = 413
    message = _("The content is too large.")


class PreconditionMissing(DomainError):
    code = "precondition_required"
    status = 428
    message = _("Send the version you read in If-Match.")


class Busy(DomainError):
    code = "busy"
    status = 503
    retry = Retry.RECOVERABLE
    message = _("The system is busy; try again in a moment.")


class Unavailable(DomainError):
    code = "unavailable"
    status = 503
    retry = Retry.RECOVERABLE
    message = _("This cannot be decided just now.")


class Timeout(DomainError):
    code = "timeout"
    status = 504
    retry = Retry.RECOVERABLE
    message = _("It took too long.")


class Corrupt(DomainError):
    """A stored row breaks its own rules; it is never repaired or skipped silently."""

    code = "corrupt"
    status = 500
    message = _("Stored data is damaged.")
