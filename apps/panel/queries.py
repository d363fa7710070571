"""Reads that span apps: what a page shows in one look, in a fixed number of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from apps.access.models import Application, User
from apps.core import clock
from apps.dispatch.queries import waiting_for
from apps.projects.models import Project
from apps.projects.queries import current_bindings
from apps.runs.models import Run, Skip
from apps.runs.queries import latest_attempts, usual_durations
from apps.triggers import queries as triggers
from apps.triggers.models import Trigger

LEFT_MOST = 100


@dataclass(frozen=True)
class RunRow:
    """A run as a list shows it: who started it, how it ended, what it is measured against, why it waits."""

    run: Run
    starter: str
    exit_code: int | None
    usual_ms: int | None
    waits: str

    @property
    def took_ms(self) -> int | None:
        """How long it took, or has taken until now."""
        if self.run.started_at is None:
            return None
        until = self.run.finished_at or (None if self.run.ended else clock.now())
        return (until - self.run.started_at) // timedelta(milliseconds=1) if until else None


@dataclass(frozen=True)
class SkipRow:
    """A start that did not happen, with the name of who wanted it."""

    skip: Skip
    starter: str


def names(subject_ids: Iterable[str | None]) -> Mapping[str, str]:
    """Names of people and applications by subject id, for showing who did something; one query."""
    wanted = {subject_id for subject_id in subject_ids if subject_id}
    people = User.objects.filter(subject_id__in=wanted).values_list("subject_id", "username")
    applications = Application.objects.filter(subject_id__in=wanted).values_list("subject_id", "name")
    return dict(people.union(applications))


def run_rows(runs: Sequence[Run]) -> list[RunRow]:
    """Runs as a list shows them; four queries."""
    people = names(run.triggered_by_id for run in runs)
    newest = latest_attempts([run.pk for run in runs])
    usual = usual_durations(run.task_id for run in runs)
    reasons = waiting_for(runs)
    return [
        RunRow(
            run=run,
            starter=people.get(run.triggered_by_id, ""),
            exit_code=newest[run.pk].exit_code if run.pk in newest else None,
            usual_ms=usual.get(run.task_id),
            waits=reasons.get(run.pk, ""),
        )
        for run in runs
    ]


def people_of(project_id: str, *, limit: int = 50) -> list[tuple[str, str]]:
    """Subject id and name of the people with a role in the project, by name; two queries."""
    bindings = current_bindings().filter(project=project_id, subject_type="user", state="active")
    found = names(bindings.values_list("subject_id", flat=True)[:limit])
    return sorted(found.items(), key=lambda pair: pair[1])


def short(run_id: UUID) -> str:
    """The end of an id: its beginning is the time, which neighbours share."""
    return str(run_id)[-8:]


def running_now(project_id: str) -> int:
    """How many runs are being carried out, counted up to ten; two queries."""
    return min(10, sum(count_of(project_id, status, 10) for status in ("running", "dispatching")))


def count_of(project_id: str, status: str, most: int) -> int:
    """How many runs of a project are in a state, counted up to `most`.

    In the order of its index: without one PostgreSQL may walk all runs to find a few.
    """
    rows = Run.objects.filter(project_id=project_id, status=status).order_by("-created_at", "-id")
    return len(rows.values_list("pk")[:most])


def is_shared(project_id: str) -> bool:
    """Whether more than one person has a role in the project; one query."""
    active = current_bindings().filter(project=project_id, subject_type="user", state="active")
    return len(active.values_list("pk")[:2]) > 1


@dataclass(frozen=True)
class Company:
    """Who is in a project beside one person."""

    shared: bool
    applications: bool


def company(project_id: str) -> Company:
    """Whether several people, and whether any application has a role in a project; one query."""
    active = current_bindings().filter(project=project_id, state="active")
    # People come first: an application beyond the bound matters only where there is one person.
    kinds = list(active.order_by("-subject_type").values_list("subject_type", flat=True)[:20])
    return Company(kinds.count("user") > 1, any(kind != "user" for kind in kinds))


def skip_rows(found: Sequence[Skip]) -> list[SkipRow]:
    """Skips with the names of who wanted to start; one query."""
    people = names(skip.triggered_by_id for skip in found)
    return [SkipRow(skip, people.get(skip.triggered_by_id, "")) for skip in found]


@dataclass(frozen=True)
class LeftRow:
    """A schedule that goes on without its author, in words."""

    trigger: Trigger
    project: Project
    words: str
    author: str


@dataclass(frozen=True)
class LeftBehind:
    """`rows` are of projects the visitor may read, `elsewhere` counts those of others; both up to LEFT_MOST."""

    rows: list[LeftRow]
    elsewhere: int


def left_behind(projects: Sequence[Project], author_id: str | None = None) -> LeftBehind:
    """Schedules of all disabled people, or of one author whatever their state; three queries."""
    mine = {project.pk: project for project in projects}
    found = triggers.left_behind(author_id)
    here = found.filter(project__in=mine).select_related("task").order_by("created_at", "id")[:LEFT_MOST]
    authors = names(trigger.author_id for trigger in here)
    return LeftBehind(
        [
            LeftRow(
                trigger,
                mine[trigger.project_id],
                triggers.words(trigger),
                authors.get(trigger.author_id, trigger.author_id),
            )
            for trigger in here
        ],
        len(found.exclude(project__in=mine).values_list("pk")[:LEFT_MOST]),
    )
