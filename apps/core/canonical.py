"""Canonical JSON and digests: the one text form of a value that may be hashed (architecture.md §4)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 64


class NotCanonical(ValueError):
    """The value, or the text, has no canonical form."""


def dumps(value: Any, *, max_bytes: int | None = None) -> str:
    """UTF-8 JSON text with sorted keys and no spaces.

    Integral floats are written as integers and -0 as 0, so that equal numbers have equal digests. Raises
    NotCanonical for what JSON does not know (NaN, other types, non-text keys, lone surrogates), for nesting
    beyond 64 and for more than `max_bytes` bytes.
    """
    text = json.dumps(_plain(value, 0), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise NotCanonical("text is not valid Unicode") from error
    if max_bytes is not None and size > max_bytes:
        raise NotCanonical(f"larger than {max_bytes} bytes")
    return text


def ordered(value: Any) -> str:
    """Compact JSON in the key order of the value itself, for the forms whose spec states an order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """The value of JSON text; duplicate keys, NaN and numbers without end are refused with NotCanonical."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise NotCanonical("not JSON") from error


def digest(value: Any) -> str:
    """SHA-256 of the canonical form, lower-case hex."""
    return sha256(dumps(value))


def sha256(data: str | bytes) -> str:
    """SHA-256 of text (as UTF-8) or bytes, lower-case hex."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def domain_digest(domain: str, *parts: str) -> str:
    """SHA-256 over `domain` and the parts, joined by NUL; no part may hold one."""
    if any("\0" in part for part in parts):
        raise NotCanonical("a part holds NUL")
    return sha256("\0".join((domain, *parts)))


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise NotCanonical("nested too deep")
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotCanonical("not a JSON number")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotCanonical("a key is not text")
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, depth + 1) for item in value]
    raise NotCanonical("not a JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotCanonical("duplicate key")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotCanonical("not a JSON number")
    return number


def _no_constant(_name: str) -> Any:
    raise NotCanonical("not a JSON number")
