"""Entry points of the control cluster for logs: listing, retention, orphans."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from apps.artifacts.retention import history, limits, listing, orphans, rules, sweep, watching
from apps.core import clock, control, participants
from apps.runs.services import folding
from apps.runs.services.totals import COUNTED

# Other jobs wait meanwhile, and starts share disk and database: work for so long at most, and rest longer than a batch
# took, so that a start that meets one is rare.
BUDGET_S = 2.0
REST = 3.0
EVERY_MS = 5_000


def _while_busy(step: Callable[[], bool]) -> bool:
    """Repeats `step` while it finds work, within the budget; True where there was still some."""
    until = time.monotonic() + BUDGET_S
    while True:
        begun = time.monotonic()
        if not step():
            return False
        rest = REST * (time.monotonic() - begun)
        if time.monotonic() + rest >= until:
            return True
        time.sleep(rest)


def list_ended(_cursor: control.Cursor) -> control.Cursor | None:
    """Puts the logs of ended runs on the list of what lies on the disk."""
    _while_busy(lambda: listing.list_ended() == listing.BATCH)
    return None


def retain(cursor: control.Cursor) -> control.Cursor | None:
    """A round of sweeps each interval of the profile; one that had to stop goes on with the next call."""
    now = clock.now_ms()
    if not cursor.get("busy") and now < int(cursor.get("next_ms", 0)):
        return None

    failed, pressure = 0, False

    def step() -> bool:
        nonlocal failed, pressure
        options = sweep.Options.of_instance()
        swept = sweep.cycle(options)
        over = limits.enforce(options.most)
        failed += swept.swept.failed + sum(entry.outcome.endswith("_failed") for entry in over)
        pressure = swept.swept.pressure
        moved = swept.action in ("advanced", "cleared")
        return (moved and swept.swept.status != "complete") or len(over) == options.most

    busy = _while_busy(step)
    return {
        "busy": busy,
        "next_ms": now + rules.instance().interval_ms,
        "failed": failed,
        "pressure": pressure,
    }


def fold_history(cursor: control.Cursor) -> control.Cursor | None:
    """Folds old runs, window by window; an end of the round is waited out for an hour."""
    now = clock.now_ms()
    if now < int(cursor.get("next_ms", 0)):
        return None
    place = UUID(cursor["after"]) if cursor.get("after") else None

    def step() -> bool:
        nonlocal place
        place, _folded = history.fold(place)
        return place is not None

    if _while_busy(step):
        return {"after": str(place)}
    while history.forget_skips():
        pass
    return {"next_ms": now + 3_600_000}


def sweep_orphans(cursor: control.Cursor) -> control.Cursor | None:
    """A few shards per call; the totals of the last whole round stay readable."""
    now = clock.now_ms()
    if now < int(cursor.get("next_ms", 0)):
        return None
    looked = orphans.sweep(cursor.get("after"))
    sums = {
        name: int(cursor.get("round", {}).get(name, 0)) + getattr(looked, name)
        for name in ("names", "unknown", "removed", "bytes", "strange")
    }
    if looked.after is not None:
        return {**cursor, "after": looked.after, "round": sums}
    return {"last": {**sums, "at_ms": now}, "next_ms": now + 6 * 3_600_000}


def register() -> None:
    """Makes the jobs known, and what retention has to do with ends and histories of runs."""
    participants.register(COUNTED, listing.note)
    folding.register("artifacts", history.PART)
    watching.register()
    control.register("artifacts.list_ended", list_ended, every_ms=15_000)
    control.register("artifacts.retain", retain, every_ms=EVERY_MS)
    control.register("artifacts.fold_history", fold_history, every_ms=EVERY_MS)
    control.register("artifacts.sweep_orphans", sweep_orphans, every_ms=60_000)


register()
