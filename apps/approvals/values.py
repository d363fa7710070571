"""What the values of approvals may be (approvals.md §2). Full matches: a trailing newline is no identifier."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from django.utils.translation import gettext_lazy as _

from apps.approvals.errors import InvalidApprovalValue
from apps.core import clock
from apps.core.errors import InvalidInput
from apps.core.fields import MAX_VERSION

RISKS = ("low", "medium", "high", "critical")
VERDICTS = ("approved", "rejected")
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WHOLE = timedelta(milliseconds=1)

Refusal = type[InvalidInput]


def is_identifier(value: object, longest: int) -> bool:
    """Whether this is 1 … `longest` letters, digits and `._:-`, beginning with a letter or digit."""
    return isinstance(value, str) and len(value) <= longest and _IDENTIFIER.fullmatch(value) is not None


def is_digest(value: object) -> bool:
    """Whether this is a SHA-256 in lower-case hex."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def identifier(name: str, value: object, longest: int, refusal: Refusal = InvalidApprovalValue) -> str:
    """The value, checked; raises `refusal`."""
    if not is_identifier(value, longest) or not isinstance(value, str):
        raise refusal.field(name, _("Not an identifier."))
    return value


def digest(name: str, value: object, refusal: Refusal = InvalidApprovalValue) -> str:
    """The value, checked; raises `refusal`."""
    if not is_digest(value) or not isinstance(value, str):
        raise refusal.field(name, _("Not a digest."))
    return value


def one_of(
    name: str, value: object, allowed: tuple[str, ...], refusal: Refusal = InvalidApprovalValue
) -> str:
    """The value, checked; raises `refusal`."""
    if not isinstance(value, str) or value not in allowed:
        raise refusal.field(name, _("Not one of the possible values."))
    return value


def whole(
    name: str, value: object, least: int, most: int = MAX_VERSION, refusal: Refusal = InvalidApprovalValue
) -> int:
    """A whole number within its bounds; raises `refusal`, for a boolean too."""
    if type(value) is not int or not least <= value <= most:
        raise refusal.field(name, _("Not a possible number."))
    return value


def moment(name: str, value: object, refusal: Refusal = InvalidApprovalValue) -> datetime:
    """A time in whole milliseconds, not before 1970; raises `refusal`."""
    if not isinstance(value, datetime) or value.tzinfo is None or value < clock.from_ms(0):
        raise refusal.field(name, _("Not a possible time."))
    if (value - clock.from_ms(0)) % _WHOLE:
        raise refusal.field(name, _("Not a possible time."))
    return value
