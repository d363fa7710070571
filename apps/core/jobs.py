"""What the `control` cluster calls."""

from __future__ import annotations

from apps.core import clock, control, wakeups

CONTROL = "control"

wakeups.register(wakeups.Cluster(CONTROL, "apps.core.jobs.run_control"))


def run_control() -> None:
    """Answers the ring first, so that one that comes while jobs run is heard again."""
    wakeups.answer(CONTROL)
    control.run_due(clock.now())
