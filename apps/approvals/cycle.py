"""One cycle: first recovery, then dispatch, page by page within bounds (approvals.md §8).

Single flight, pauses and stopping are those of control jobs. Where a cycle left off is remembered in this process
only: one that begins anew begins at the start, which is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from apps.approvals import dispatching, recovery
from apps.approvals.due import MAX_PAGE, Position, Report

MAX_PAGES = 64
COMPLETE, PAGE_LIMIT, STALLED = "complete", "page_limit", "cursor_stalled"
# A control job is short: what a phase does not get to in this time it leaves to the next cycle.
PHASE_S = 10.0

Page = Callable[[str, int, Position | None], Report]


@dataclass(frozen=True)
class Bounds:
    """How much one phase does in a cycle: pages and their size, 1 … 64 each; raises ValueError."""

    pages: int = 4
    size: int = 16

    def __post_init__(self) -> None:
        if not (1 <= self.pages <= MAX_PAGES and 1 <= self.size <= MAX_PAGE):
            raise ValueError("a phase has 1 to 64 pages of 1 to 64")


@dataclass(frozen=True)
class Profile:
    """How often a cycle comes when there is something to do, and how much it does."""

    interval_s: float
    recovery: Bounds
    dispatch: Bounds

    def __post_init__(self) -> None:
        if not 0.25 <= self.interval_s <= 86_400:
            raise ValueError("a cycle comes every 250 ms to 24 h")


PROFILES = {
    "edge": Profile(30, Bounds(1, 8), Bounds(1, 8)),
    "standalone": Profile(2, Bounds(2, 16), Bounds(4, 32)),
}
PROFILES["cluster"] = PROFILES["standalone"]


@dataclass
class Phase:
    """Goes on where it left off."""

    page: Page
    bounds: Bounds
    owner: str
    position: Position | None = None

    def run(self) -> tuple[dict[str, Any], Position | None]:
        """Counts, stop reason and milliseconds, and where to go on; raises what listing raises."""
        began = time.monotonic()
        total: dict[str, int] = {}
        position, stop = self.position, PAGE_LIMIT
        for _ in range(self.bounds.pages):
            report = self.page(self.owner, self.bounds.size, position)
            for name, value in asdict(report).items():
                if name not in ("truncated", "next_cursor"):
                    total[name] = total.get(name, 0) + value
            if not report.truncated:
                position, stop = None, COMPLETE
                break
            if report.next_cursor is None or report.next_cursor == position:
                position, stop = None, STALLED
                break
            position = report.next_cursor
            if time.monotonic() - began > PHASE_S:
                break
        took_ms = round((time.monotonic() - began) * 1000)
        return {**total, "stop": stop, "took_ms": took_ms}, position


@dataclass
class Cycle:
    """Both phases of one process."""

    profile: Profile
    recovering: Phase = field(init=False)
    dispatching: Phase = field(init=False)

    def __post_init__(self) -> None:
        owner = dispatching.owner_name
        self.recovering = Phase(recovery.recover_page, self.profile.recovery, owner("reconciler"))
        self.dispatching = Phase(dispatching.dispatch_page, self.profile.dispatch, owner("dispatcher"))

    def run(self) -> dict[str, Any]:
        """What both phases came to. Where recovery cannot look, nothing new is begun: its error ends the cycle.

        Positions move only when both came to their end.
        """
        recovered, after = self.recovering.run()
        carried, later = self.dispatching.run()
        self.recovering.position, self.dispatching.position = after, later
        return {"recovery": recovered, "dispatch": carried}
