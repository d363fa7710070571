"""Reads that span apps: what a page shows in one look, in a fixed number of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.models import OuterRef, Subquery

from apps.access.models import User
from apps.core import clock, pages
from apps.projects.queries import attach, current_bindings
from apps.runs.models import Run, Skip
from apps.runs.queries import latest_attempts
from apps.tasks import queries as tasks
from apps.tasks.models import Task

SHORT_LIST = 10

# The order of 2.x: pinned first, then enabled ones, then the newest.
PANEL_ORDER = (
    pages.Key("pinned", descending=True),
    pages.Key("enabled", descending=True),
    pages.moment("created_at", descending=True),
    pages.identifier(descending=True),
)


@dataclass(frozen=True)
class TaskRow:
    """A task with its newest run and the run that holds its place, if there are any."""

    task: Task
    last: Run | None
    current: Run | None


@dataclass(frozen=True)
class RunRow:
    """A run with the name of who started it and its newest exit code."""

    run: Run
    starter: str
    exit_code: int | None


@dataclass(frozen=True)
class SkipRow:
    """A start that did not happen, with the name of who wanted it."""

    skip: Skip
    starter: str


@dataclass(frozen=True)
class Overview:
    """The state of a project; lists hold at most SHORT_LIST, `more_…` tells of others."""

    running: list[Run]
    queued: list[Run]
    failed: list[Run]
    more_running: bool
    more_queued: bool
    more_failed: bool
    first_task: Task | None
    last_run: Run | None


def task_page(
    project_id: str, filters: tasks.Filters, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[TaskRow]:
    """Tasks in the panel's order; three queries whatever the number of runs."""
    newest = Run.objects.filter(task=OuterRef("pk")).order_by("-created_at", "-id").values("pk")[:1]
    rows = tasks.filtered(Task.objects.filter(project_id=project_id), filters).annotate(
        last_run_id=Subquery(newest)
    )
    found = pages.paginate(
        rows, PANEL_ORDER, kind="panel.tasks", scope=filters.scope(project_id), limit=limit, cursor=cursor
    )
    attach(project_id, found.items)
    newest_ids = {task.pk: getattr(task, "last_run_id", None) for task in found.items}
    last = Run.objects.in_bulk([run_id for run_id in newest_ids.values() if run_id])
    holding = _holders(newest_ids)
    return pages.Page(
        [TaskRow(task, last.get(newest_ids[task.pk]), holding.get(task.pk)) for task in found.items],
        found.next_cursor,
    )


def _holders(task_ids: Iterable[UUID]) -> dict[UUID, Run]:
    """The run of each task that runs or is next to run."""
    found: dict[UUID, Run] = {}
    for run in Run.objects.filter(task_id__in=list(task_ids), holds_place=True).order_by("-id")[:1000]:
        known = found.get(run.task_id)
        if known is None or (run.status == "running" and known.status != "running"):
            found[run.task_id] = run
    return found


def names(subject_ids: Iterable[str | None]) -> Mapping[str, str]:
    """User names by subject id, for showing who did something; one query."""
    wanted = {subject_id for subject_id in subject_ids if subject_id}
    return dict(User.objects.filter(subject_id__in=wanted).values_list("subject_id", "username"))


def run_rows(runs: Sequence[Run]) -> list[RunRow]:
    """Runs as a list shows them; two queries."""
    people = names(run.triggered_by_id for run in runs)
    newest = latest_attempts([run.pk for run in runs])
    return [
        RunRow(
            run, people.get(run.triggered_by_id, ""), newest[run.pk].exit_code if run.pk in newest else None
        )
        for run in runs
    ]


def short(run_id: UUID) -> str:
    """The end of an id: its beginning is the time, which neighbours share."""
    return str(run_id)[-8:]


def running_now(project_id: str) -> int:
    """How many runs are being carried out, counted up to ten; one query."""
    going = Run.objects.filter(project_id=project_id, status__in=("running", "dispatching"))
    return len(going.values_list("pk")[:10])


def is_shared(project_id: str) -> bool:
    """Whether more than one person has a role in the project; one query."""
    active = current_bindings().filter(project=project_id, subject_type="user", state="active")
    return len(active.values_list("pk")[:2]) > 1


def skip_rows(found: Sequence[Skip]) -> list[SkipRow]:
    """Skips with the names of who wanted to start; one query."""
    people = names(skip.triggered_by_id for skip in found)
    return [SkipRow(skip, people.get(skip.triggered_by_id, "")) for skip in found]


def overview(project_id: str) -> Overview:
    """The state of a project now, and what failed within a day; eight short queries."""
    day = clock.now() - timedelta(days=1)
    running = _newest(project_id, "running", "dispatching")
    queued = _newest(project_id, "queued")
    failed = [run for run in _newest(project_id, "failed", "timed_out", "lost") if run.created_at >= day]
    tasks_of_project = Task.objects.filter(project_id=project_id, archived_at=None)
    return Overview(
        running=running[:SHORT_LIST],
        queued=queued[:SHORT_LIST],
        failed=failed[:SHORT_LIST],
        more_running=len(running) > SHORT_LIST,
        more_queued=len(queued) > SHORT_LIST,
        more_failed=len(failed) > SHORT_LIST,
        first_task=tasks_of_project.order_by("-created_at", "-id").first(),
        last_run=Run.objects.filter(project_id=project_id).order_by("-created_at", "-id").first(),
    )


def _newest(project_id: str, *statuses: str) -> list[Run]:
    """The newest runs in these states, one more than a list shows; a short index scan for each state."""
    found: list[Run] = []
    for status in statuses:
        rows = Run.objects.filter(project_id=project_id, status=status).order_by("-created_at", "-id")
        found += rows[: SHORT_LIST + 1]
    return sorted(found, key=lambda run: (run.created_at, run.pk), reverse=True)[: SHORT_LIST + 1]
