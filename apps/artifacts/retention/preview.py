"""What a rule would remove if it were applied now (lessons, idea 7): worked out as the sweep does, within bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from apps.artifacts import store
from apps.artifacts.errors import CapacityUnavailable
from apps.artifacts.models import Removal, StoredLog
from apps.artifacts.retention import candidates, limits, listing, rules
from apps.artifacts.retention.rules import Limits
from apps.core import clock
from apps.core.errors import Forbidden, NotFound
from apps.projects.policy import Grant
from apps.tasks.models import Task

# Rows of the list that one preview looks at.
LOOKED_AT = 20_000


@dataclass(frozen=True)
class Preview:
    """What would go now: logs, their files and bytes, by rule; `oldest_kept_at` of what stays.

    Where `bounded`, only a part was looked at: it is at least so much, and what is kept may be younger.
    """

    logs: int
    runs: int
    files: int
    bytes: int
    by_rule: dict[str, int]
    oldest_kept_at: datetime | None
    kept_logs: int
    kept_bytes: int
    bounded: bool


def preview(grant: Grant, wanted: Limits | None = None, task_id: UUID | None = None) -> Preview:
    """Of the project of the grant or one task of it, with `wanted` in place of its rule; nothing is changed.

    Raises NotFound for a task of another project.
    """
    if grant.permission != rules.PERMISSION:
        raise Forbidden
    if task_id is not None and not Task.objects.filter(pk=task_id, project_id=grant.project_id).exists():
        raise NotFound
    found = rules.load(pressure=_is_short())
    if wanted is not None:
        if task_id is None:
            found = replace(found, projects={**found.projects, grant.project_id: wanted})
        else:
            found = replace(found, tasks={**found.tasks, task_id: wanted})
    own = found.projects.get(grant.project_id) if task_id is None else found.tasks.get(task_id)
    return _work_out(grant.project_id, task_id, own or Limits(), found, clock.now())


def _is_short() -> bool:
    """As a sweep would find the disk; one that cannot look removes nothing, and what waits goes by age later."""
    try:
        return store.capacity().available < store.minimum_free()
    except CapacityUnavailable:
        return False


def _work_out(
    project_id: str, task_id: UUID | None, own: Limits, found: rules.Rules, now: datetime
) -> Preview:
    """Oldest first: by age, and beyond it by the limits of the scope itself; a task has a preview of its own."""
    usage = listing.usage(project_id, task_id)
    over = limits.excess(own, usage)
    logs = files = size = looked_at = 0
    runs: set[UUID] = set()
    by_rule: dict[str, int] = {}
    oldest_kept: datetime | None = None
    at_end = False
    for chunk, last in candidates.chunks(candidates.in_scope(project_id, task_id), None, LOOKED_AT):
        at_end = last
        looked_at += len(chunk)
        chosen = {one.attempt_id: one for one in candidates.judge(chunk, found, lambda _row: now)}
        for row in chunk:
            rule = _rule(row, found, now, over, logs, size) if row.pk in chosen else None
            if rule is None:
                oldest_kept = oldest_kept or row.finished_at
                continue
            logs, files, size = logs + 1, files + row.files, size + row.bytes
            runs.add(row.run_id)
            by_rule[rule] = by_rule.get(rule, 0) + 1
        if chunk and not _more_may_go(chunk[-1], found, now, over, logs, size):
            at_end = True
        if at_end:
            break
    return Preview(
        logs,
        len(runs),
        files,
        size,
        by_rule,
        oldest_kept,
        usage.logs - logs,
        max(0, usage.bytes - size),
        not at_end,
    )


def _rule(
    row: StoredLog, found: rules.Rules, now: datetime, over: limits.Excess, logs: int, size: int
) -> str | None:
    if row.finished_at <= rules.cutoff(now, found.keep_ms(row.project_id, row.task_id)):
        return str(Removal.PRESSURE if found.pressure else Removal.AGE)
    if logs < over.logs:
        return str(Removal.COUNT)
    return str(Removal.BYTES) if size < over.bytes else None


def _more_may_go(
    last: StoredLog, found: rules.Rules, now: datetime, over: limits.Excess, logs: int, size: int
) -> bool:
    """Whether anything behind this row can still go: younger than every rule and within the limits, nothing can."""
    return last.finished_at <= rules.cutoff(now, found.shortest_ms) or logs < over.logs or size < over.bytes
