"""Whether what is due is carried out (core.health)."""

from __future__ import annotations

from datetime import timedelta

from apps.core import clock, health
from apps.triggers.queries import next_fire

OVERDUE = timedelta(minutes=2)


def overdue() -> str | None:
    """Whether a trigger has been due for long: no scheduler, or one that cannot do its work."""
    oldest = next_fire()
    if oldest is None or clock.now() - oldest < OVERDUE:
        return None
    return f"a trigger has been due for {int((clock.now() - oldest).total_seconds())} s"


health.register("due_triggers", overdue)
