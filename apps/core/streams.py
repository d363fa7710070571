"""Streams: a head row whose revision is the number of its newest event (upper-floors.md §2).

Every change of the head raises its revision by the number of events it appends, in the same transaction, so
the history has no gap and every state has its story.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import orjson
from django.db import IntegrityError

from apps.core import bulk, canonical, db, ids
from apps.core.errors import Conflict, DomainError

MAX_PAYLOAD = 16_384
# Of values of these kinds no text is more than six times as long as the fast writer makes it.
_PLAIN = frozenset({str, int, bool, type(None)})
_SURELY = MAX_PAYLOAD // 6


class DuplicateEvent(Conflict):
    """The stream holds an event with this dedupe key: the command was applied before."""

    code = "duplicate_event"


class PayloadTooLarge(DomainError):
    """Carries `actual` and `allowed` bytes."""

    code = "event_payload_too_large"
    status = 400


class PayloadNotObject(DomainError):
    code = "event_payload_invalid"
    status = 400


@dataclass(frozen=True)
class Actor:
    """Who did it, as an event tells it: type ≤ 64 characters, id ≤ 255."""

    type: str
    id: str | None = None


@dataclass(frozen=True)
class NewEvent:
    """An event before it has a number. `payload` is a JSON object of at most 16 KiB."""

    type: str
    actor: Actor
    payload: Mapping[str, Any] = field(default_factory=dict)
    dedupe_key: str | None = None
    attempt_id: Any = None

    def checked(self) -> dict[str, Any]:
        """The payload; raises PayloadNotObject or PayloadTooLarge."""
        if not isinstance(self.payload, Mapping):
            raise PayloadNotObject
        payload = dict(self.payload)
        if _PLAIN.issuperset(map(type, payload.values())) and _is_short(payload):
            return payload
        size = len(canonical.ordered(payload).encode())
        if size > MAX_PAYLOAD:
            raise PayloadTooLarge(actual=size, allowed=MAX_PAYLOAD)
        return payload


def _is_short(payload: dict[str, Any]) -> bool:
    try:
        return len(orjson.dumps(payload)) <= _SURELY
    except TypeError:
        return False  # the exact way says what is wrong with it


class Stream:
    """How a model's events are stored; one subclass per stream, declaring its table."""

    model: ClassVar[Any]
    head: ClassVar[str]

    @classmethod
    def insert(cls, batches: Sequence[tuple[Any, int, Sequence[NewEvent]]], now: datetime) -> None:
        """Inserts the events of many heads in one statement: (head id, revision before, events).

        The caller has raised each head's revision by the number of its events. Raises DuplicateEvent; the
        transaction must then be rolled back.
        """
        rows = [
            (
                ids.uuid7(), head_id, revision + offset, event.type, event.dedupe_key,
                event.actor.type, event.actor.id, event.attempt_id, event.checked(), now,
            )
            for head_id, revision, events in batches
            for offset, event in enumerate(events, start=1)
        ]  # fmt: skip
        columns = ["id", cls.head, "sequence", "type", "dedupe_key", "actor_type", "actor_id"]
        try:
            bulk.insert_rows(cls.model, [*columns, "attempt_id", "payload", "created_at"], rows)
        except IntegrityError as error:
            if db.is_unique_violation(error):
                raise DuplicateEvent from error
            raise
