"""What triggers bring to the processes."""

from __future__ import annotations

from uuid import UUID

from apps.core import control
from apps.triggers import scheduling
from apps.triggers.schedules import zones
from apps.triggers.services import forgetting
from apps.triggers.services.reaim import follow_zones

_ROUNDS = 20


def follow_zone_data(cursor: control.Cursor) -> control.Cursor | None:
    """Goes through all schedules once after each update of the time zone data, a bounded part per call."""
    version = zones.version()
    if cursor.get("done") == version:
        return None
    text = cursor.get("after") if cursor.get("version") == version else None
    after = UUID(text) if text else None
    for _ in range(_ROUNDS):
        after = follow_zones(after)
        if after is None:
            return {"done": version}
    return {"version": version, "after": str(after)}


def forget_rules(_cursor: control.Cursor) -> control.Cursor | None:
    """Removes rules and switches that nobody can ask about any more."""
    for _ in range(_ROUNDS):
        if forgetting.forget_rules() + forgetting.forget_switches() == 0:
            break
    return None


def register() -> None:
    """Makes the alarm and the jobs known."""
    scheduling.register()
    control.register("triggers.forget_rules", forget_rules, every_ms=3_600_000)
    control.register("triggers.follow_zone_data", follow_zone_data, every_ms=600_000)


register()
