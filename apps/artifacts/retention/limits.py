"""Rules by count and bytes: what a project or task has beyond them goes, the oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apps.artifacts.models import Removal, RetentionRule
from apps.artifacts.retention import candidates, listing, rules, sweep
from apps.artifacts.retention.candidates import Candidate
from apps.artifacts.retention.rules import Limits, Rules
from apps.core import clock
from apps.core.pace import Pace


@dataclass(frozen=True)
class Excess:
    """Logs and bytes that a rule finds too many; `rule` names the one that is broken further."""

    logs: int
    bytes: int

    @property
    def rule(self) -> str:
        return Removal.COUNT if self.logs > 0 else Removal.BYTES


def bounded() -> list[tuple[str, UUID | None, Limits]]:
    """Projects and tasks that bound how much they keep: tasks first, what they give up is the project's gain."""
    rows = RetentionRule.objects.exclude(keep_most=None, keep_bytes=None).order_by("project_id", "id")
    return [
        (row.project_id, row.task_id, rules.limits_of(row))
        for row in sorted(rows, key=lambda one: one.task_id is None)
    ]


def excess(limits: Limits, usage: listing.Usage) -> Excess:
    """What of a usage is beyond the limits."""
    return Excess(
        max(0, usage.logs - limits.keep_most) if limits.keep_most is not None else 0,
        max(0, usage.bytes - limits.keep_bytes) if limits.keep_bytes is not None else 0,
    )


def surplus(
    project_id: str, task_id: UUID | None, limits: Limits, found: Rules, now: datetime, most: int
) -> Iterator[Candidate]:
    """At most `most` logs that have to go for the limits to hold, the oldest first.

    What is kept for another reason is passed over, within SCAN rows, so the limits may go on being broken.
    """
    given = taken = 0
    rows = candidates.in_scope(project_id, task_id)
    for chunk, _at_end in candidates.chunks(rows, None, candidates.SCAN):
        # Asked behind the rows: what another sweeper took of them is in neither, so nobody takes its share again.
        over = excess(limits, listing.usage(project_id, task_id))
        logs, size = over.logs - given, over.bytes - taken
        if (logs <= 0 and size <= 0) or given == most:
            return
        for one in candidates.judge(chunk, found, lambda _row: now):
            if (logs <= 0 and size <= 0) or given == most:
                return
            yield one
            logs, size = logs - 1, size - one.bytes
            given, taken = given + 1, taken + one.bytes


def enforce(most: int, pace: Pace | None = None) -> list[sweep.Entry]:
    """Removes up to `most` logs beyond the limits of all rules; the next call goes on where this one had to stop."""
    entries: list[sweep.Entry] = []
    scopes = bounded()
    if not scopes:
        return entries
    found, now = rules.load(), clock.now()
    for project_id, task_id, limits in scopes:
        left = most - len(entries)
        if left <= 0:
            break
        over = excess(limits, listing.usage(project_id, task_id))
        if over.logs <= 0 and over.bytes <= 0:
            continue
        chosen = list(surplus(project_id, task_id, limits, found, now, left))
        entries += sweep.remove(chosen, found, over.rule, now, pace)
    return entries
