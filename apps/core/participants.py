"""What must reach upward inside a transaction: callbacks by topic, run once before commit (upper-floors.md §2).

A service notes what it changed; whoever registered for the topic gets the distinct subjects, in key order, in
the same transaction. An error in a callback aborts everything. Signals are not used for behaviour.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

Callback = Callable[[Sequence[Any]], None]

_callbacks: dict[str, list[Callback]] = {}
_noted = threading.local()


def register(topic: str, callback: Callback) -> None:
    """Calls `callback(subjects)` before each commit that noted `topic`; in order of registration."""
    listeners = _callbacks.setdefault(topic, [])
    if callback not in listeners:
        listeners.append(callback)


def note(topic: str, subject: Any) -> None:
    """Remembers `subject` for the topic until the open transaction ends; free where nobody listens."""
    if topic in _callbacks:
        _pending().setdefault(topic, set()).add(subject)


def begin() -> None:
    """Forgets what an earlier try of the transaction noted; `core.db` calls it."""
    _noted.topics = {}


def settle() -> None:
    """Runs the callbacks; `core.db` calls it as the last thing before commit."""
    while topics := _pending():
        # One topic at a time: what a callback notes may belong before the topics that still wait.
        topic = min(topics)
        subjects = sorted(topics.pop(topic))
        for callback in _callbacks[topic]:
            callback(subjects)


def _pending() -> dict[str, set[Any]]:
    found: dict[str, set[Any]] | None = getattr(_noted, "topics", None)
    if found is None:
        found = _noted.topics = {}
    return found
