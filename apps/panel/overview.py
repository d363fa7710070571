"""What the dashboard shows: the state of a project now, and its last day and month from the totals.

Runs are read through an index and only as many as are shown; what is counted comes from totals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import F
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.core import clock
from apps.dispatch.queries import waiting_for
from apps.panel import first_minute, queries, words
from apps.panel.drawings import Column
from apps.projects.models import Project
from apps.runs.models import ProjectHourTotal, Run, TaskDayTotal
from apps.runs.queries import latest_attempts, usual_durations
from apps.tasks.models import Task
from apps.triggers import queries as triggers
from apps.triggers.models import Trigger

SHORT = 8
MOST = 100
BAD = ("failed", "timed_out", "lost")
_LOOK_BACK = 300


@dataclass(frozen=True)
class Row:
    """A run in a short list: what it is measured against, or why it waits, or how often its task failed."""

    run: Run
    usual_ms: int | None = None
    reason: str = ""
    times: int = 1
    sentence: str = ""


@dataclass(frozen=True)
class Now:
    """Lists hold at most SHORT; counts stop at MOST."""

    running: list[Row]
    queued: list[Row]
    failed: list[Row]
    running_count: int
    queued_count: int
    waits_for_people: int
    oldest: datetime | None
    first: first_minute.FirstMinute | None
    upcoming: list[Trigger]


@dataclass(frozen=True)
class Leader:
    task: Task
    runs: int
    duration_ms: int
    longest_ms: int


@dataclass
class Totals:
    good: int = 0
    bad: int = 0
    stopped: int = 0
    spent_ms: int = 0
    took: int = 0

    @property
    def runs(self) -> int:
        return self.good + self.bad + self.stopped

    @property
    def mean_ms(self) -> int | None:
        """Of the runs that came to an end by themselves."""
        return self.spent_ms // self.took if self.took else None

    def merge(self, other: Totals) -> None:
        """Counts what another span counted."""
        self.good += other.good
        self.bad += other.bad
        self.stopped += other.stopped
        self.spent_ms += other.spent_ms
        self.took += other.took

    def add(self, status: str, runs: int, duration_ms: int) -> None:
        """Counts an hour's ends of one kind."""
        if status == "succeeded":
            self.good += runs
        elif status in BAD:
            self.bad += runs
        else:
            self.stopped += runs
        if status in ("succeeded", "failed"):
            self.spent_ms += duration_ms
            self.took += runs


@dataclass(frozen=True)
class Past:
    day: Totals
    hours: list[Column]
    days: list[Column]
    longest: list[Leader] = field(default_factory=list)
    busiest: list[Leader] = field(default_factory=list)
    most: list[Leader] = field(default_factory=list)


def now(project_id: str) -> Now:
    """What runs, waits and failed within a day; a fixed number of short index reads."""
    mine = Run.objects.filter(project_id=project_id)
    # State by state: an order over several states has no index, and the planner would walk all runs for a few.
    going = [
        run
        for status in ("running", "dispatching")
        for run in mine.filter(status=status).order_by("-created_at", "-id")[:MOST]
    ][:MOST]
    queue = mine.filter(status="queued")
    queued = list(queue.order_by("created_at", "id")[:SHORT])
    usual = usual_durations(run.task_id for run in going[:SHORT])
    reasons = waiting_for(queued)
    return Now(
        running=[Row(run, usual_ms=usual.get(run.task_id)) for run in going[:SHORT]],
        queued=[Row(run, reason=reasons.get(run.pk, "")) for run in queued],
        failed=_failed(project_id),
        running_count=len(going),
        queued_count=len(queued) if len(queued) < SHORT else queries.count_of(project_id, "queued", MOST),
        waits_for_people=queries.count_of(project_id, "waiting_approval", MOST),
        oldest=queued[0].queued_at if queued else None,
        first=None if _succeeded_before(project_id) else first_minute.state(project_id),
        upcoming=triggers.upcoming(project_id, limit=SHORT),
    )


def _succeeded_before(project_id: str) -> bool:
    """Whether the first minute is long over, as the totals know; one query instead of its four."""
    return ProjectHourTotal.objects.filter(project_id=project_id, status="succeeded").exists()


def _failed(project_id: str) -> list[Row]:
    """The newest bad end of each task within a day, out of the _LOOK_BACK newest of each kind."""
    since = clock.now() - timedelta(days=1)
    ends: list[tuple[datetime, UUID, UUID]] = []
    for status in BAD:
        rows = Run.objects.filter(project_id=project_id, status=status, created_at__gte=since)
        ends += rows.order_by("-created_at", "-id").values_list("created_at", "pk", "task_id")[:_LOOK_BACK]
    by_task: dict[UUID, list[UUID]] = defaultdict(list)
    for _at, pk, task_id in sorted(ends, reverse=True):
        by_task[task_id].append(pk)
    newest = list(by_task.values())[:SHORT]
    runs = Run.objects.in_bulk([pks[0] for pks in newest])
    attempts = latest_attempts([pks[0] for pks in newest])
    found = []
    for pks in newest:
        run = runs[pks[0]]
        attempt = attempts.get(run.pk)
        code = attempt.exit_code if attempt else None
        found.append(
            Row(run, times=len(pks), sentence=words.run_sentence(run, exit_code=code, waiting_for=None))
        )
    return found


def past(project: Project) -> Past:
    """The last 24 hours, the last 30 days and today's leaders, from totals alone; five queries."""
    at = clock.now()
    this_hour = at.replace(minute=0, second=0, microsecond=0)
    today = timezone.localtime(at).date()
    first_day = today - timedelta(days=29)
    since = min(_begins(first_day), this_hour - timedelta(hours=23))
    by_hour: dict[datetime, Totals] = defaultdict(Totals)
    by_day: dict[date, Totals] = defaultdict(Totals)
    day = Totals()
    rows = ProjectHourTotal.objects.filter(project_id=project.pk, hour__gte=since)
    for hour, status, runs, duration_ms in rows.values_list("hour", "status", "runs", "duration_ms"):
        by_hour[hour].add(status, runs, duration_ms)
        if hour > this_hour - timedelta(hours=24):
            day.add(status, runs, duration_ms)
    for hour, totals in by_hour.items():
        by_day[timezone.localtime(hour).date()].merge(totals)
    hours = [this_hour - timedelta(hours=back) for back in range(23, -1, -1)]
    days = [first_day + timedelta(days=ahead) for ahead in range(30)]
    # Days of tasks are the installation's, whatever the zone of whoever looks.
    longest, busiest, most = _leaders(project.pk, timezone.localdate(at, timezone.get_default_timezone()))
    runs_url = reverse("panel:runs", args=[project.slug])
    return Past(
        day=day,
        hours=[_hour(runs_url, hour, by_hour[hour]) for hour in hours],
        days=[_day(runs_url, one, by_day[one]) for one in days],
        longest=longest,
        busiest=busiest,
        most=most,
    )


def day(project_id: str) -> Totals:
    """How the runs of the last 24 hours ended; one query over at most 24 hours of totals."""
    found = Totals()
    since = clock.now() - timedelta(hours=24)
    rows = ProjectHourTotal.objects.filter(project_id=project_id, hour__gt=since)
    for status, runs, duration_ms in rows.values_list("status", "runs", "duration_ms"):
        found.add(status, runs, duration_ms)
    return found


def _leaders(project_id: str, today: date) -> tuple[list[Leader], list[Leader], list[Leader]]:
    """Today's five by longest run, by time together, by number."""
    rows = TaskDayTotal.objects.filter(project_id=project_id, day=today)
    lists = [list(rows.order_by(F(key).desc())[:5]) for key in ("longest_ms", "duration_ms", "runs")]
    tasks = Task.objects.in_bulk({row.task_id for found in lists for row in found})
    longest, busiest, most = (
        [Leader(tasks[row.task_id], row.runs, row.duration_ms, row.longest_ms) for row in found]
        for found in lists
    )
    return longest, busiest, most


def _begins(one: date) -> datetime:
    return timezone.make_aware(datetime(one.year, one.month, one.day))


def _hour(runs_url: str, hour: datetime, totals: Totals) -> Column:
    local = timezone.localtime(hour)
    label = local.strftime("%H:%M")
    near = hour > clock.now() - timedelta(hours=2)
    tick = label if local.hour % 6 == 0 and not near else ""
    return _column(runs_url, label, tick, totals, hour, hour + timedelta(hours=1))


def _day(runs_url: str, one: date, totals: Totals) -> Column:
    label = f"{one:%m-%d}"
    tick = label if one.weekday() == 0 and one <= timezone.localdate() - timedelta(days=3) else ""
    return _column(runs_url, label, tick, totals, _begins(one), _begins(one + timedelta(days=1)))


def _column(runs_url: str, label: str, tick: str, totals: Totals, since: datetime, until: datetime) -> Column:
    span = urlencode({"since": local_text(since), "until": local_text(until)})
    return Column(
        label=label,
        title=column_title(label, totals),
        url=f"{runs_url}?{span}",
        good=totals.good,
        bad=totals.bad,
        stopped=totals.stopped,
        mean_ms=totals.mean_ms,
        tick=tick,
    )


def local_text(at: datetime) -> str:
    """`2026-11-30T03:00`, as a field for date and time takes it."""
    return timezone.localtime(at).strftime("%Y-%m-%dT%H:%M")


def column_title(label: str, totals: Totals) -> str:
    """`03:00: 12 runs, 1 ended badly`."""
    runs = ngettext("%(n)d run", "%(n)d runs", totals.runs) % {"n": totals.runs}
    if not totals.bad:
        return _("%(when)s: %(runs)s") % {"when": label, "runs": runs}
    return _("%(when)s: %(runs)s, %(bad)d ended badly") % {"when": label, "runs": runs, "bad": totals.bad}


def peak(series: Sequence[Column]) -> int:
    """The tallest column."""
    return max((column.runs for column in series), default=0)
