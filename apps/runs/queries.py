"""Reads of runs: keyset pages without a count, and the few facts a page needs beside its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Max, OuterRef, Q, QuerySet, Subquery

from apps.core import bulk, clock, pages
from apps.core.errors import InvalidInput
from apps.core.pages import Page
from apps.projects.queries import attach
from apps.runs.errors import RunNotFound
from apps.runs.models import (
    Run,
    RunAttempt,
    RunEvent,
    RunRetryPolicy,
    RunStatus,
    RunSummary,
    Skip,
    TriggerType,
    UsualDuration,
)
from apps.tasks.models import Task

NEWEST_FIRST = (pages.moment("created_at", descending=True), pages.identifier(descending=True))
MAX_EVENTS = 500
DEFAULT_EVENTS = 100
MAX_STATUSES = 11
MAX_RETRIES = 64


@dataclass(frozen=True)
class RunFilter:
    """What a run list is narrowed to; times bound `created_at`, `since` included and `until` not."""

    task_id: UUID | None = None
    statuses: tuple[str, ...] = ()
    trigger_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    person_id: str | None = None

    def __post_init__(self) -> None:
        if any(status not in RunStatus.values for status in self.statuses):
            raise InvalidInput.field("status", "Not a status of a run.")
        if self.trigger_type is not None and self.trigger_type not in TriggerType.values:
            raise InvalidInput.field("trigger_type", "Not a kind of trigger.")

    def scope(self) -> dict[str, Any]:
        """The filter as a cursor is bound to it."""
        return {
            "task": str(self.task_id) if self.task_id else None,
            "status": sorted(self.statuses),
            "trigger_type": self.trigger_type,
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat() if self.until else None,
        } | ({"person": self.person_id} if self.person_id else {})

    def apply(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """The rows that pass."""
        if self.task_id is not None:
            rows = rows.filter(task_id=self.task_id)
        if self.statuses:
            rows = rows.filter(status__in=self.statuses)
        if self.person_id is not None:
            rows = rows.filter(triggered_by_type="user", triggered_by_id=self.person_id)
        if self.trigger_type is not None:
            rows = rows.filter(trigger_type=self.trigger_type)
        if self.since is not None:
            rows = rows.filter(created_at__gte=self.since)
        if self.until is not None:
            rows = rows.filter(created_at__lt=self.until)
        return rows


def page(
    project_id: str,
    chosen: RunFilter | None = None,
    *,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
    backward: bool = False,
) -> Page[Run]:
    """The runs of a project, newest first, with their task and project at hand.

    Several states of a whole project are read state by state: each has its index, all together have none. Those of
    one task or person are few beside them.
    """
    chosen = chosen or RunFilter()
    rows = Run.objects.filter(project_id=project_id)
    one_by_one = chosen.task_id is None and chosen.person_id is None and len(chosen.statuses) > 1
    sources = [replace(chosen, statuses=(status,)) for status in chosen.statuses] if one_by_one else [chosen]
    found = pages.paginate_any(
        [source.apply(rows) for source in sources],
        NEWEST_FIRST,
        kind="runs",
        scope={"project": project_id, **chosen.scope()},
        limit=limit,
        cursor=cursor,
        backward=backward,
    )
    _attach(project_id, found.items)
    return found


def _attach(project_id: str, rows: Sequence[Run | Skip]) -> None:
    """Gives rows of one project their task and project, in two queries.

    A join would let SQLite's planner walk all tasks and sort all their runs for one page.
    """
    tasks = Task.objects.in_bulk({row.task_id for row in rows})
    for row in rows:
        row.task = tasks[row.task_id]
    attach(project_id, rows)


def get(run_id: UUID) -> Run:
    """One run with its task and project; raises RunNotFound."""
    run = Run.objects.filter(pk=run_id).select_related("task", "project").first()
    if run is None:
        raise RunNotFound
    return run


def project_of(run_id: UUID) -> str | None:
    """The project a run belongs to, None for an unknown one."""
    return Run.objects.filter(pk=run_id).values_list("project_id", flat=True).first()


def slugs_later(run_ids: Sequence[UUID]) -> Callable[[], dict[UUID, tuple[str, str]]]:
    """Short names of project and task of some runs' tasks, as scripts see them, when it is called for."""
    where, params = bulk.among(Run, "id", run_ids)
    found = bulk.select_later(
        "SELECT t.id, p.slug, t.slug FROM tasks t JOIN projects p ON p.id = t.project_id"
        f" WHERE t.id IN (SELECT task_id FROM runs WHERE {where})",
        params,
    )
    return lambda: {Task._meta.pk.to_python(pk): (project, task) for pk, project, task in found()}


def find_by_key(project_id: str, idempotency_key: str) -> Run | None:
    """The run that a key started in a project (runs.md §5.4)."""
    return (
        Run.objects.filter(project_id=project_id, idempotency_key=idempotency_key)
        .select_related("task", "project")
        .first()
    )


def attempts(run_id: UUID) -> list[RunAttempt]:
    """All attempts of a run, first to last; a run has at most 16."""
    return list(RunAttempt.objects.filter(run_id=run_id).order_by("attempt"))


def latest_attempts(run_ids: Sequence[UUID]) -> dict[UUID, RunAttempt]:
    """The newest attempt of each run; one query, and one more where histories were folded."""
    if not run_ids:
        return {}
    newest = (
        RunAttempt.objects.filter(run_id=OuterRef("run_id"))
        .values("run_id")
        .annotate(newest=Max("attempt"))
        .values("newest")
    )
    rows = RunAttempt.objects.filter(run_id__in=run_ids, attempt=Subquery(newest))
    found = {row.run_id: row for row in rows}
    folded = folded_attempts([pk for pk in run_ids if pk not in found])
    return found | {run_id: tries[-1] for run_id, tries in folded.items() if tries}


def folded_attempts(run_ids: Sequence[UUID]) -> dict[UUID, list[RunAttempt]]:
    """Attempts that only summaries tell of, by run, first to last: what was kept of each, in no table any more.

    Each carries `folded_at`; one query, none for no runs.
    """
    if not run_ids:
        return {}
    rows = RunSummary.objects.filter(run_id__in=run_ids)
    return {row.run_id: [_of_summary(row, each) for each in row.tries] for row in rows}


def _of_summary(summary: RunSummary, told: Mapping[str, Any]) -> RunAttempt:
    def at(name: str) -> datetime | None:
        value = told.get(name)
        return None if value is None else clock.from_ms(int(value))

    found = RunAttempt(
        run_id=summary.run_id, attempt=told["attempt"], status=told["status"], worker_id=told.get("worker"),
        started_at=at("started_at_ms"), finished_at=at("finished_at_ms"), exit_code=told.get("exit_code"),
        error_code=told.get("error_code"),
    )  # fmt: skip
    found.folded_at = summary.folded_at  # type: ignore[attr-defined]
    return found


def folded_at(run_id: UUID) -> datetime | None:
    """When the history of a run was folded; None while it is whole."""
    return RunSummary.objects.filter(pk=run_id).values_list("folded_at", flat=True).first()


@dataclass(frozen=True)
class RetryCandidate:
    """A run that is lost (`available_at_ms` 0) or due to be tried again; `phase` is its status."""

    run_id: UUID
    phase: str
    available_at_ms: int

    @property
    def position(self) -> tuple[int, UUID]:
        """Where the next page begins."""
        return (self.available_at_ms, self.run_id)


def retry_candidates(
    observed_at: datetime, *, after: tuple[int, UUID] | None = None, limit: int = 16
) -> list[RetryCandidate]:
    """Lost runs, then those whose wait is over, the longest waiting first; `limit` is 1–64 (runs.md §10.1)."""
    if not 1 <= limit <= MAX_RETRIES:
        raise InvalidInput
    found: list[RetryCandidate] = []
    if after is None or after[0] == 0:
        # A literal keeps the partial index usable.
        lost, params = "SELECT id FROM runs WHERE status = 'lost' AND execution_owner = 'runtime'", []
        if after is not None:
            lost, params = f"{lost} AND id > %s", [Run._meta.pk.get_db_prep_value(after[1], connection)]
        ids = bulk.select_values_later(f"{lost} ORDER BY id LIMIT %s", [*params, limit])()
        found = [RetryCandidate(Run._meta.pk.to_python(pk), "lost", 0) for pk in ids]
    rows = RunRetryPolicy.objects.filter(
        next_attempt_at__lte=observed_at, run__status="retry_wait", run__execution_owner="runtime"
    )
    if after is not None and after[0] > 0:
        seen = clock.from_ms(after[0])
        rows = rows.filter(Q(next_attempt_at__gt=seen) | Q(next_attempt_at=seen, run_id__gt=after[1]))
    due = rows.order_by("next_attempt_at", "run_id").values_list("run_id", "next_attempt_at")
    for run_id, at in due[: limit - len(found)]:
        assert at is not None
        found.append(RetryCandidate(run_id, "retry_wait", clock.to_ms(at)))
    return found


def next_attempts(runs: Iterable[Run]) -> dict[UUID, datetime]:
    """When each run that waits to be tried again is; no query where none does."""
    waiting = [run.pk for run in runs if run.status == "retry_wait"]
    if not waiting:
        return {}
    rows = RunRetryPolicy.objects.filter(run_id__in=waiting, next_attempt_at__isnull=False)
    return {run_id: at for run_id, at in rows.values_list("run_id", "next_attempt_at") if at is not None}


def usual_durations(task_ids: Iterable[UUID]) -> dict[UUID, int]:
    """How long successes of these tasks usually take, in milliseconds, at most one fold old; one query."""
    found = UsualDuration.objects.filter(task_id__in=set(task_ids))
    return dict(found.values_list("task_id", "mean_ms"))


def events(run_id: UUID, *, after: int = 0, limit: int = DEFAULT_EVENTS) -> list[RunEvent]:
    """Events with a sequence above `after`, ascending; `limit` is 1–500."""
    if after < 0 or not 1 <= limit <= MAX_EVENTS:
        raise InvalidInput
    return list(RunEvent.objects.filter(run_id=run_id, sequence__gt=after).order_by("sequence")[:limit])


def skips(
    project_id: str,
    *,
    task_id: UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> Page[Skip]:
    """Starts that did not happen, newest first."""
    chosen = RunFilter(task_id=task_id, since=since, until=until)
    rows = chosen.apply(Skip.objects.filter(project_id=project_id))
    scope = {"project": project_id, **chosen.scope()}
    found = pages.paginate(rows, NEWEST_FIRST, kind="skips", scope=scope, limit=limit, cursor=cursor)
    _attach(project_id, found.items)
    return found
