"""Why did it not run? Every due time of a task in a span, with what became of it (lessons, idea 2).

Due times follow from the rules that held at the time (`TriggerRevision`); what became of them from runs, records of
skips, and who switched what off (`Switch`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.core import canonical, clock, pages
from apps.core.errors import DomainError, InvalidInput
from apps.dispatch import queries as dispatch
from apps.runs.models import ENDED, Run, Skip
from apps.runs.queries import next_attempts
from apps.tasks.models import Task
from apps.triggers import planning
from apps.triggers.due_words import Verdict, explain
from apps.triggers.models import Boot, Switch, Trigger, TriggerRevision
from apps.triggers.schedules import CronRule, rule_of, walls, words, zones
from apps.triggers.schedules.clock_changes import special
from apps.triggers.schedules.rules import between

MAX_SPAN = timedelta(days=400)
DEFAULT_SPAN = timedelta(days=1)
_MS = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)
_KEYS = (pages.moment("due_at"), pages.identifier("trigger_id"))


@dataclass(frozen=True)
class Entry:
    """One due time. `by` and `since` say who switched off what stood in the way; `until` ends a span of misses."""

    due_at: datetime
    fire_at: datetime
    trigger_id: UUID
    trigger_kind: str
    rule: str
    status: str
    reason: str | None
    sentence: str
    action: str
    run: Run | None = None
    waiting_for: str | None = None
    skip: Skip | None = None
    by: tuple[str, str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    change: str | None = None

    def document(self) -> dict[str, Any]:
        """The API's form."""
        return {
            "due_at": clock.rfc3339(self.due_at),
            "fire_at": clock.rfc3339(self.fire_at),
            "jitter_ms": (self.fire_at - self.due_at) // _MS,
            "trigger": {"id": str(self.trigger_id), "kind": self.trigger_kind, "words": self.rule},
            "status": self.status,
            "reason": self.reason,
            "run": None if self.run is None else {"id": str(self.run.pk), "status": self.run.status},
            "waiting_for": self.waiting_for,
            "skip": None if self.skip is None else str(self.skip.pk),
            "approval": None if self.skip is None else self.skip.approval_id,
            "by": None if self.by is None else {"type": self.by[0], "id": self.by[1]},
            "since": None if self.since is None else clock.rfc3339(self.since),
            "until": None if self.until is None else clock.rfc3339(self.until),
            "clock_change": self.change,
            "sentence": self.sentence,
            "action": self.action,
        }


@dataclass(frozen=True)
class Timeline:
    """Entries, ascending by due time."""

    items: list[Entry]
    next_cursor: str | None


@dataclass(frozen=True, order=True)
class _Due:
    """A due time of one revision; `left_out` where a clock change took it away."""

    at: datetime
    trigger_id: UUID
    revision: TriggerRevision = field(compare=False)
    left_out: bool = field(compare=False, default=False)


def timeline(
    task: Task,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> Timeline:
    """The due times of a task from `since` (included) to `until` (not), ascending, at most 400 days.

    Without them the last 24 hours; times to come are planned ones. Raises InvalidInput and the cursor's errors.
    """
    now = clock.now()
    until = until or (now if since is None or since < now else since + DEFAULT_SPAN)
    since = since or until - DEFAULT_SPAN
    if not since < until:
        raise InvalidInput.field("until", _("Later than since."))
    if until - since > MAX_SPAN:
        raise InvalidInput.field("since", _("At most 400 days at once."))
    scope = canonical.digest(
        {"task": str(task.pk), "since": clock.to_ms(since), "until": clock.to_ms(until), "limit": limit}
    )
    behind: tuple[datetime, UUID] | None = None
    if cursor:
        behind = tuple(pages.decode(cursor, "due", scope, _KEYS))
    found = list(islice(_due_times(task, since, until, behind), limit + 1))
    following = None
    if len(found) > limit:
        last = found[limit - 1]
        following = pages.encode("due", scope, [clock.to_ms(last.at), str(last.trigger_id)])
    return Timeline(_judge(task, found[:limit], now), following)


def _due_times(
    task: Task, since: datetime, until: datetime, behind: tuple[datetime, UUID] | None
) -> Iterator[_Due]:
    start = since if behind is None else max(since, behind[0])
    sources = [
        _of_period(revision, max(start, begin + _MS), min(until - _MS, end))
        for revision, begin, end in _periods(task, until)
        if end >= start
    ]
    merged = heapq.merge(*sources)
    return (due for due in merged if behind is None or (due.at, due.trigger_id) > behind)


def _periods(task: Task, until: datetime) -> Iterator[tuple[TriggerRevision, datetime, datetime]]:
    """Each revision with the time for which it held: later than the first moment, through the second."""
    rows = TriggerRevision.objects.filter(task_id=task.pk, created_at__lt=until)
    found = list(rows.order_by("trigger_id", "version"))
    for revision, following in zip(found, [*found[1:], None], strict=False):
        same = following is not None and following.trigger_id == revision.trigger_id
        if not revision.deleted:
            yield revision, revision.created_at, following.created_at if same and following else until


def _of_period(revision: TriggerRevision, first: datetime, last: datetime) -> Iterator[_Due]:
    """Due times from `first` through `last`."""
    if revision.kind == "boot":
        boots = Boot.objects.filter(created_at__gte=first, created_at__lte=last).order_by("created_at")
        for at in boots.values_list("created_at", flat=True):
            yield _Due(at, revision.trigger_id, revision)
        return
    try:
        rule = rule_of(revision)
    except DomainError:
        return
    fires = (_Due(at, revision.trigger_id, revision) for at in between(rule, first - _MS, last))
    yield from heapq.merge(fires, _left_out(revision, rule, first, last))


def _left_out(revision: TriggerRevision, rule: Any, first: datetime, last: datetime) -> Iterator[_Due]:
    """Gaps of the clocks that swallow times for which a person may wait: not those of a rule for every hour."""
    if not isinstance(rule, CronRule) or not rule.cron.by_clock or len(rule.cron.hour.values) == 24:
        return
    for change in zones.changes(rule.tz, first, last):
        begin, behind = change.walls
        if change.gap and walls.count(rule.cron, begin - _SECOND, behind - _SECOND):
            yield _Due(change.at, revision.trigger_id, revision, left_out=True)


@dataclass(frozen=True)
class _Facts:
    """What is known about a page of due times; read with the same number of queries for any page."""

    runs: dict[str, Run]
    waiting: dict[UUID, str]
    again: dict[UUID, datetime]
    skips: dict[UUID, list[Skip]]
    going: set[UUID]
    switches: list[Switch]
    live: dict[UUID, Trigger]


def _judge(task: Task, found: Sequence[_Due], now: datetime) -> list[Entry]:
    if not found:
        return []
    facts = _facts(task, found)
    entries = []
    for due in found:
        run = facts.runs.get(planning.key(due.trigger_id, due.at))
        skip = None if run else _covering(facts.skips, due)
        verdict = _verdict(due, run, skip, facts.live.get(due.trigger_id), now)
        entries.append(_entry(due, verdict, run, skip, facts))
    return entries


def _facts(task: Task, found: Sequence[_Due]) -> _Facts:
    runs = _runs(task, found)
    skips = _skips(task, found[0].at, found[-1].at)
    blocking = {skip.blocking_run_id for many in skips.values() for skip in many if skip.blocking_run_id}
    going = Run.objects.filter(pk__in=blocking).exclude(status__in=ENDED).values_list("pk", flat=True)
    switches = Switch.objects.filter(Q(task_id=task.pk) | Q(task_id=None), project_id=task.project_id)
    return _Facts(
        runs,
        dispatch.waiting_for(list(runs.values())),
        next_attempts(runs.values()),
        skips,
        set(going) if blocking else set(),
        list(switches.order_by("created_at")),
        {trigger.pk: trigger for trigger in Trigger.objects.filter(task=task)},
    )


def _runs(task: Task, found: Iterable[_Due]) -> dict[str, Run]:
    """By the keys that the scheduler gives: an index has them."""
    keys = [planning.key(due.trigger_id, due.at) for due in found if not due.left_out]
    rows = Run.objects.filter(project_id=task.project_id, idempotency_key__in=keys)
    return {str(run.idempotency_key): run for run in rows}


def _skips(task: Task, first: datetime, last: datetime) -> dict[UUID, list[Skip]]:
    spans = Q(last_scheduled_for__gte=first) | Q(open=True) | Q(scheduled_for__gte=first)
    rows = Skip.objects.filter(spans, task=task, scheduled_for__lte=last, trigger_id__isnull=False)
    found: dict[UUID, list[Skip]] = {}
    for skip in rows.order_by("scheduled_for"):
        found.setdefault(skip.trigger_id, []).append(skip)  # type: ignore[arg-type]
    return found


def _covering(skips: dict[UUID, list[Skip]], due: _Due) -> Skip | None:
    for skip in reversed(skips.get(due.trigger_id, [])):
        first, last = skip.scheduled_for, skip.last_scheduled_for or skip.scheduled_for
        if first is not None and last is not None and first <= due.at and (skip.open or due.at <= last):
            return skip
    return None


def _verdict(due: _Due, run: Run | None, skip: Skip | None, live: Trigger | None, now: datetime) -> Verdict:
    if due.left_out:
        return Verdict("left_out")
    if run is not None:
        return Verdict("waits" if run.status in ("created", "queued", "retry_wait") else "ran", run.status)
    if skip is not None and due.at <= now:
        return Verdict.of_skip(skip)
    if not due.revision.enabled:
        return Verdict("disabled", "trigger_disabled")
    waits_for_it = live is not None and live.due_at is not None and live.due_at <= due.at
    if due.at > now or (waits_for_it and live is not None and planning.fires_at(live, due.at) > now):
        return Verdict("planned")
    if waits_for_it:
        return (
            Verdict("pending")
            if now - due.at < timedelta(seconds=10)
            else Verdict("missed", "scheduler_down")
        )
    return Verdict("unknown")


def _entry(due: _Due, verdict: Verdict, run: Run | None, skip: Skip | None, facts: _Facts) -> Entry:
    revision = due.revision
    by, since = _who(due, verdict, facts.switches)
    waiting_for = facts.waiting.get(run.pk) if run else None
    again_at = facts.again.get(run.pk) if run else None
    change = special(rule_of(revision), due.at) if revision.kind == "cron" and not due.left_out else None
    blocked = skip is not None and skip.blocking_run_id in facts.going
    sentence, action = explain(
        verdict, blocked=blocked, waiting_for=waiting_for, again_at=again_at, change=change
    )
    return Entry(
        due.at,
        due.at + planning.jitter(due.trigger_id, due.at, revision.jitter_ms),
        due.trigger_id,
        revision.kind,
        words.of(revision),
        verdict.status,
        verdict.reason,
        sentence,
        action,
        run,
        waiting_for,
        skip,
        by,
        since or (skip.scheduled_for if skip else None),
        skip.last_scheduled_for if skip and not skip.open else None,
        change,
    )


def _who(
    due: _Due, verdict: Verdict, switches: Sequence[Switch]
) -> tuple[tuple[str, str] | None, datetime | None]:
    """Who switched off what stood in the way, and when."""
    if verdict.reason == "trigger_disabled":
        revision = due.revision
        return (revision.changed_by_type, revision.changed_by_id), revision.created_at
    wanted = {
        "task_disabled": ("disabled", True),
        "task_archived": ("archived", True),
        "project_archived": ("archived", False),
    }.get(verdict.reason or "")
    if wanted is None:
        return None, None
    before = [
        switch
        for switch in switches
        if switch.state == wanted[0]
        and (switch.task_id is not None) == wanted[1]
        and switch.created_at <= due.at
    ]
    if not before:
        return None, None
    return (before[-1].changed_by_type, before[-1].changed_by_id), before[-1].created_at
