"""Entry points of the control cluster for logs: listing, retention, orphans."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from apps.artifacts.retention import history, limits, listing, orphans, rules, sweep, watching
from apps.core import clock, control, participants
from apps.core.pace import Pace
from apps.runs.services import folding
from apps.runs.services.totals import COUNTED

# Other jobs wait meanwhile, and starts share disk and database: work for so long at most, and rest longer behind each
# transaction than it and what led to it took, so that a start that meets one is rare and waits for no second one.
BUDGET_S = 2.0
BUSY_MS = 5_000
PACE = Pace(rest=3.0)


def _while_busy(step: Callable[[], bool]) -> bool:
    """Repeats `step` while it finds work, within the budget; True where there was still some."""
    until = time.monotonic() + BUDGET_S
    PACE.begin()
    while step():
        PACE.pause()
        if time.monotonic() >= until:
            return True
    return False


def list_ended(_cursor: control.Cursor) -> control.Cursor:
    """Puts the logs of ended runs on the list of what lies on the disk."""
    return {"busy": _while_busy(lambda: listing.list_some(PACE))}


def retain(_cursor: control.Cursor) -> control.Cursor:
    """A round of sweeps; one that had to stop goes on with the next call."""
    failed, pressure = 0, False

    def step() -> bool:
        nonlocal failed, pressure
        options = sweep.Options.of_instance()
        swept = sweep.cycle(options, pace=PACE)
        over = limits.enforce(options.most, PACE)
        failed += swept.swept.failed + sum(entry.outcome.endswith("_failed") for entry in over)
        pressure = swept.swept.pressure
        moved = swept.action in ("advanced", "cleared")
        return (moved and swept.swept.status != "complete") or len(over) == options.most

    busy = _while_busy(step)
    return {"busy": busy, "failed": failed, "pressure": pressure}


def fold_history(cursor: control.Cursor) -> control.Cursor:
    """Folds old runs, window by window; behind the last one records of what did not run go."""
    place = UUID(cursor["after"]) if cursor.get("after") else None

    def step() -> bool:
        nonlocal place
        place, _folded = history.fold(place, PACE)
        return place is not None

    if _while_busy(step):
        return {"busy": True, "after": str(place)}
    return {"busy": _while_busy(lambda: history.forget_skips(PACE) > 0)}


def sweep_orphans(cursor: control.Cursor) -> control.Cursor:
    """A few shards per call; the totals of the last whole round stay readable."""
    looked = orphans.sweep(cursor.get("after"))
    sums = {
        name: int(cursor.get("round", {}).get(name, 0)) + getattr(looked, name)
        for name in ("names", "unknown", "removed", "bytes", "strange")
    }
    if looked.after is not None:
        return {"busy": True, "after": looked.after, "round": sums, "last": cursor.get("last")}
    return {"last": {**sums, "at_ms": clock.now_ms()}}


def register() -> None:
    """Makes the jobs known, and what retention has to do with ends and histories of runs."""
    participants.register(COUNTED, listing.note)
    folding.register("artifacts", history.PART)
    watching.register()
    control.register("artifacts.list_ended", list_ended, every_ms=60_000, busy_ms=BUSY_MS)
    control.register("artifacts.retain", retain, rules.instance().interval_ms, busy_ms=BUSY_MS)
    control.register("artifacts.fold_history", fold_history, every_ms=3_600_000, busy_ms=BUSY_MS)
    control.register("artifacts.sweep_orphans", sweep_orphans, every_ms=6 * 3_600_000, busy_ms=60_000)


register()
