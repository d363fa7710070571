"""Identifiers: UUIDv7 for rows, checked text where an id has a meaning (architecture.md §4)."""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from uuid import UUID

import uuid_utils.compat

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def uuid7() -> UUID:
    """A new time-ordered id."""
    return uuid_utils.compat.uuid7()


@lru_cache(maxsize=4096)
def text(value: UUID) -> str:
    """The canonical form of an id; for the hot paths, where the same few are written again and again."""
    return str(value)


def is_uuid7(text: str) -> bool:
    """Whether `text` is a lower-case UUIDv7, hyphens included."""
    return _UUID7.fullmatch(text) is not None


def parse_uuid(text: str) -> UUID | None:
    """The id that `text` spells in its one canonical form, or None."""
    try:
        value = UUID(text)
    except (ValueError, AttributeError, TypeError):
        return None
    return value if str(value) == text else None


def has_control(text: str) -> bool:
    """Whether `text` holds a character U+0000–U+001F or U+007F."""
    return _CONTROL.search(text) is not None


def is_text_id(text: object, longest: int) -> bool:
    """Whether `text` is 1 … `longest` characters without control characters and encodable as UTF-8."""
    if not isinstance(text, str) or not 1 <= len(text) <= longest or has_control(text):
        return False
    return is_utf8(text)


def is_utf8(text: str) -> bool:
    """Whether `text` can be written as UTF-8, that is, holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def token(size: int = 32) -> str:
    """`size` random bytes as base64url without padding (43 characters for 32 bytes)."""
    return secrets.token_urlsafe(size)
