"""Which pairs of name and address are locked, as this process knows it: refusing them again asks nobody.

The truth is in the database (django-axes). What is remembered here was refused by it, and while somebody knocks at a
remembered pair the database is asked once a second what is still locked: an end that came early is seen then.
"""

from __future__ import annotations

import math
import threading
from datetime import timedelta

from axes.models import AccessAttempt
from django.conf import settings
from django.utils import timezone

from apps.core import clock

KNOWN_FOR_MS = 1000
REMEMBERED = 10_000

Pair = tuple[str, str]

_changing = threading.Lock()
_ends: dict[Pair, int] = {}
_asked_ms = 0


def seconds_left(pair: Pair) -> int:
    """How long a pair is locked yet, 0 for one that is not known to be; at most one query a second."""
    if pair not in _ends:
        return 0
    # A clock that was put back must not prolong anything.
    if not 0 <= clock.now_ms() - _asked_ms < KNOWN_FOR_MS:
        _ask()
    left_ms = _ends.get(pair, 0) - clock.now_ms()
    return math.ceil(left_ms / 1000) if left_ms > 0 else 0


def remember(pair: Pair) -> None:
    """Called with a pair that the database has just refused or locked."""
    if len(_ends) < REMEMBERED:
        _ends[pair] = clock.now_ms() + KNOWN_FOR_MS


def forget() -> None:
    """As in a new process; for tests."""
    global _asked_ms
    _ends.clear()
    _asked_ms = 0


def _ask() -> None:
    """Replaces what is remembered by what is locked; whoever comes while another thread asks takes what was known."""
    global _asked_ms, _ends
    if not _changing.acquire(blocking=False):
        return
    try:
        _asked_ms = clock.now_ms()
        now = timezone.now()
        rows = AccessAttempt.objects.filter(
            failures_since_start__gte=settings.AXES_FAILURE_LIMIT,
            attempt_time__gt=now - settings.AXES_COOLOFF_TIME,
        ).values_list("username", "ip_address", "attempt_time")[:REMEMBERED]
        found = {
            (name, address): _end_ms(at + settings.AXES_COOLOFF_TIME - now) for name, address, at in rows
        }
        _ends = found
    finally:
        _changing.release()


def _end_ms(left: timedelta) -> int:
    # axes reads a clock of its own: what counts is how long it is yet.
    return clock.now_ms() + int(left.total_seconds() * 1000)
