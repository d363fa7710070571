"""What the scheduler asks every second: one statement that says which of its looks are worth making.

An idle installation answers No to all of it, and then nothing else is asked. Each answer may be Yes once too often,
never No where the look itself would find something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from apps.core import bulk, control, node, wakeups
from apps.dispatch.services import adoption


@dataclass(frozen=True)
class Glance:
    """Whether a control job is due, a ring stands unanswered, something of this node is under a lease."""

    due: bool
    unanswered: bool
    carried: bool


def take(now: datetime) -> Glance:
    """One query."""
    here = _here()
    due, params = control.due_condition(now)
    sql = f"SELECT {due}, {wakeups.UNANSWERED}, {adoption.CARRIED}"
    (row,) = bulk.select_later(sql, [*params, here])()
    return Glance(bool(row[0]), bool(row[1]), bool(row[2]) or not here)


class Glances:
    """The newest glance; all that is done at one moment shares it."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._seen: Glance | None = None

    def when(
        self, wanted: Callable[[Glance], bool], function: Callable[[datetime], None]
    ) -> Callable[[datetime], None]:
        """`function`, called only where the glance of that moment shows what is wanted."""

        def look(now: datetime) -> None:
            if self._seen is None or self._at != now:
                self._seen, self._at = take(now), now
            if wanted(self._seen):
                function(now)

        return look


def _here() -> str:
    """Empty where the node's folder cannot be used: control jobs are rung for all the same."""
    try:
        return node.node_id()
    except node.NodeUnusable:
        return ""
