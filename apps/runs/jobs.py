"""Entry points of the control cluster for runs."""

from __future__ import annotations

from uuid import UUID

from apps.core import control
from apps.runs import services
from apps.runs.services import places, retrying

_ROUNDS = 10


def fold_totals(_cursor: control.Cursor) -> control.Cursor | None:
    """Counts ends into their hours, in a few bounded batches."""
    for _ in range(_ROUNDS):
        if services.fold_totals() == 0:
            break
    return None


def sweep_places(_cursor: control.Cursor) -> control.Cursor | None:
    """Gives places to runs that wait although one is free: their last holder's process died in between."""
    places.sweep()
    return None


def retry_runs(cursor: control.Cursor) -> control.Cursor | None:
    """Decides runs that are lost or due to be tried again; goes on next time where it had to stop."""
    after = (int(cursor["at_ms"]), UUID(cursor["run"])) if cursor else None
    for _ in range(_ROUNDS):
        after = retrying.sweep(after)
        if after is None:
            return {}
    assert after is not None
    return {"at_ms": after[0], "run": str(after[1])}


def register() -> None:
    """Makes the jobs known."""
    control.register("runs.retry", retry_runs, every_ms=5_000)
    control.register("runs.sweep_places", sweep_places, every_ms=15_000)
    control.register("runs.fold_totals", fold_totals, every_ms=15_000)
