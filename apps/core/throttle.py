"""How often somebody may ask, where a process's own memory is enough to know."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque

WINDOW_S = 60.0
_REMEMBERED = 10_000


class Throttle:
    """At most `most` calls a minute for each key, in this process; remembers a bounded number of keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def full(self, key: str) -> int:
        """Seconds until the next call is welcome, 0 for now; counts nothing."""
        with self._lock:
            if key not in self._calls:
                return 0
            calls = self._recent(key)
            return int(calls[0] + WINDOW_S - time.monotonic()) + 1 if len(calls) >= self._most else 0

    def count(self, key: str) -> None:
        """Notes a call."""
        with self._lock:
            self._recent(key).append(time.monotonic())
            self._calls.move_to_end(key)
            while len(self._calls) > _REMEMBERED:
                self._calls.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything; for tests."""
        self._calls.clear()

    def _recent(self, key: str) -> deque[float]:
        calls = self._calls.setdefault(key, deque())
        while calls and calls[0] <= time.monotonic() - WINDOW_S:
            calls.popleft()
        return calls
