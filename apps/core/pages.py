"""Keyset pages with signed cursors (upper-floors.md §2).

A cursor is bound to its list, project, filters and limit. Bad = `cursor_invalid` 400; good, but made for
another list = `cursor_mismatch` 409. The newest of `SECRET_KEY` and `SECRET_KEY_FALLBACKS` signs, all verify.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.core import signing
from django.db.models import F, Model, Q, QuerySet

from apps.core import canonical, clock
from apps.core.errors import Conflict, InvalidInput

M = TypeVar("M", bound=Model)
T = TypeVar("T")

MAX_LIMIT = 200
DEFAULT_LIMIT = 50
MAX_CURSOR = 2048
_SALT = "qinglong.pages"


class CursorInvalid(InvalidInput):
    code = "cursor_invalid"


class CursorMismatch(Conflict):
    code = "cursor_mismatch"


@dataclass(frozen=True)
class Key:
    """One column of the order: attribute, direction and how its value is read back from a cursor."""

    name: str
    descending: bool = False
    read: Callable[[Any], Any] = lambda value: value


def moment(name: str, *, descending: bool = False) -> Key:
    """A key over a time column."""
    return Key(name, descending, _read_moment)


def identifier(name: str = "id", *, descending: bool = False) -> Key:
    """A key over a UUID column."""
    return Key(name, descending, UUID)


@dataclass(frozen=True)
class Page(Generic[T]):
    """Rows in the order of the list; `previous_cursor` leads to the page before, read backwards."""

    items: list[T]
    next_cursor: str | None
    previous_cursor: str | None = None


def read_limit(text: str | None, *, default: int = DEFAULT_LIMIT, largest: int = MAX_LIMIT) -> int:
    """A page size of 1 … `largest` from the text of a request; raises InvalidInput."""
    if text is None or text == "":
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= largest:
        raise InvalidInput.field("limit", f"A whole number from 1 to {largest}.")
    return int(text)


def paginate(
    rows: QuerySet[M],
    keys: Sequence[Key],
    *,
    kind: str,
    scope: Mapping[str, Any],
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
    backward: bool = False,
) -> Page[M]:
    """One page of `rows` in the order of `keys`, which must end in a unique column.

    `kind` and `scope` (project, filters) are what the cursor is bound to, with the limit. Backward, the page ends
    just before the cursor's position; without a cursor it is the last one.
    """
    return paginate_any([rows], keys, kind=kind, scope=scope, limit=limit, cursor=cursor, backward=backward)


def paginate_any(
    sources: Sequence[QuerySet[M]],
    keys: Sequence[Key],
    *,
    kind: str,
    scope: Mapping[str, Any],
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
    backward: bool = False,
) -> Page[M]:
    """One page of all that disjoint `sources` hold, one query each: every one can walk an index of its own.

    Several sources need keys of one direction.
    """
    bound = canonical.digest({"scope": dict(scope), "limit": limit})
    walk = [Key(key.name, not key.descending, key.read) for key in keys] if backward else list(keys)
    position = decode(cursor, kind, bound, keys) if cursor else None
    order = [F(key.name).desc() if key.descending else F(key.name).asc() for key in walk]
    found: list[M] = []
    for rows in sources:
        narrowed = rows if position is None else rows.filter(after(walk, position))
        found += narrowed.order_by(*order)[: limit + 1]
    if len(sources) > 1:
        found.sort(key=lambda row: tuple(_value(row, key.name) for key in walk), reverse=walk[0].descending)
    items, more = found[:limit], len(found) > limit
    if backward:
        items.reverse()
    ahead, behind = (position is not None, more) if backward else (more, position is not None)

    def at(row: M) -> str:
        return encode(kind, bound, place(row, keys))

    return Page(items, at(items[-1]) if items and ahead else None, at(items[0]) if items and behind else None)


def place(row: Model, keys: Sequence[Key]) -> list[Any]:
    """Where a row stands in the order of `keys`, as a cursor holds it."""
    return [_write(_value(row, key.name)) for key in keys]


class _Json:
    """As `signing` has it, but letters are bytes, not escapes: a name of 255 of them still fits into an address."""

    def dumps(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


def encode(kind: str, scope: str, position: Sequence[Any]) -> str:
    """The cursor text of a position."""
    document = {"k": kind, "s": scope, "p": list(position)}
    return signing.dumps(document, salt=_SALT, serializer=_Json, compress=False)


def decode(cursor: str, kind: str, scope: str, keys: Sequence[Key]) -> list[Any]:
    """The position behind a cursor; raises CursorInvalid or CursorMismatch."""
    if len(cursor) > MAX_CURSOR:
        raise CursorInvalid
    try:
        document = signing.loads(cursor, salt=_SALT, serializer=_Json)
        position = [key.read(value) for key, value in zip(keys, document["p"], strict=True)]
        found = (document["k"], document["s"])
    except (signing.BadSignature, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CursorInvalid from error
    if found != (kind, scope):
        raise CursorMismatch
    return position


def after(keys: Sequence[Key], position: Sequence[Any]) -> Q:
    """Rows strictly behind `position` in the order of `keys`; directions may be mixed."""
    if all(key.descending == keys[0].descending for key in keys) and len(keys) == 2:
        # Written so that both engines seek in an index over both columns.
        first, second = keys
        side = "lt" if first.descending else "gt"
        return Q(**{f"{first.name}__{side}e": position[0]}) & (
            Q(**{f"{first.name}__{side}": position[0]}) | Q(**{f"{second.name}__{side}": position[1]})
        )
    found = Q()
    for index, key in enumerate(keys):
        equal = Q(**{k.name: value for k, value in zip(keys[:index], position, strict=False)})
        found |= equal & Q(**{f"{key.name}__{'lt' if key.descending else 'gt'}": position[index]})
    return found


def _value(row: Model, name: str) -> Any:
    value: Any = row
    for part in name.split("__"):
        value = getattr(value, part)
    return value


def _write(value: Any) -> Any:
    if isinstance(value, datetime):
        return clock.to_ms(value)
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _read_moment(value: Any) -> datetime:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("not a time")
    return clock.from_ms(value)
