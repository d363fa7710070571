"""Why did it not run? Each due time of a task, what became of it, the rule that decided, one button that helps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from apps.core import clock
from apps.core.errors import NotFound
from apps.panel import queries, task_page
from apps.panel.page import Page
from apps.panel.views.task import TaskTab
from apps.runs import queries as runs
from apps.tasks import queries as tasks
from apps.tasks.models import Task
from apps.triggers import due
from apps.triggers.models import Trigger

SPANS: tuple[tuple[int, Promise], ...] = (
    (24, gettext_lazy("24 hours")),
    (168, gettext_lazy("7 days")),
    (720, gettext_lazy("30 days")),
)
MAX_HOURS = 24 * 400
_LIMIT = 200
_FOLD_FROM = 3
# The look of each status: an icon, and the state whose colour it takes.
LOOKS: dict[str, tuple[str, str]] = {
    "ran": ("check", "succeeded"), "waits": ("clock", "queued"), "pending": ("clock", "queued"),
    "skipped": ("skips", "cancelled"), "missed": ("warning", "timed_out"), "disabled": ("power", "cancelled"),
    "archived": ("archive", "cancelled"), "left_out": ("calendar", "cancelled"), "planned": ("calendar", "created"),
    "unknown": ("info", "lost"), "approval": ("approve", "waiting_approval"),
}  # fmt: skip
NOT_RUN = {"skipped", "missed", "disabled", "archived", "left_out", "approval"}


@dataclass(frozen=True)
class Span:
    """What is looked at: `hours` back from now, or from `since` to `until`."""

    since: datetime
    until: datetime
    hours: int | None

    @property
    def address(self) -> str:
        """The span as parameters that mean the same later on."""
        return urlencode({"since": clock.rfc3339(self.since), "until": clock.rfc3339(self.until)})

    @classmethod
    def read(cls, request: HttpRequest) -> Span:
        """The span of an address; the last 24 hours where it says none or nonsense."""
        now = clock.now()
        since, until = (_moment(request.GET.get(name, "")) for name in ("since", "until"))
        if since is not None and since < (until or now):
            until = min(until or now + timedelta(hours=24), since + timedelta(hours=MAX_HOURS))
            return cls(since, until, None)
        text = request.GET.get("hours", "24")
        hours = int(text) if text.isascii() and text.isdigit() and len(text) < 6 and int(text) else 24
        return cls(now - timedelta(hours=min(hours, MAX_HOURS)), now, hours)


@dataclass(frozen=True)
class Told:
    """One due time as the page shows it, with the one button that helps, if the visitor may press it."""

    entry: due.Entry
    icon: str
    state: str
    who: str
    help: Help | None


@dataclass(frozen=True)
class Help:
    """A button or a link; `posts` what changes something."""

    word: str | Promise
    url: str
    posts: bool = False


@dataclass(frozen=True)
class Group:
    """Due times one after the other with one outcome, or a single one."""

    told: list[Told]

    @property
    def last(self) -> Told:
        """The last of them."""
        return self.told[-1]

    @property
    def folded(self) -> bool:
        """Whether they are shown as one line that opens."""
        return len(self.told) > _FOLD_FROM


class WhyOfTask(TaskTab):
    """The due times of one task as a line through a span of time."""

    template = "panel/task_why.html"
    tab = "why"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        self.also("run.read")
        span = Span.read(request)
        cursor = request.GET.get("cursor")
        found = due.timeline(task, since=span.since, until=span.until, limit=_LIMIT, cursor=cursor)
        people = queries.names(entry.by[1] for entry in found.items if entry.by)
        off = _switched_off(task, found.items)
        told = [
            Told(
                entry,
                *LOOKS.get(entry.status, LOOKS["unknown"]),
                people.get(entry.by[1], "") if entry.by else "",
                self.help(task, entry, off),
            )
            for entry in found.items
        ]
        return self.tab_page(
            task,
            groups=_groups(told),
            next_cursor=found.next_cursor,
            span=span,
            spans=SPANS,
            answer=_answer(found.items) if not found.next_cursor and not cursor else "",
        )

    def help(self, task: Task, entry: due.Entry, off: Set[UUID]) -> Help | None:
        """What to press about a due time; None where nothing helps or the visitor may not."""
        p, t = self.project.slug, task.pk if task.archived_at else task.slug
        administrator = self.visitor.account.is_superuser
        trigger = reverse("panel:trigger", args=[p, t, entry.trigger_id])
        match entry.action:
            case "open_run" if entry.run:
                return Help(_("Open the run"), reverse("panel:run", args=[entry.run.pk]))
            case "open_approval" if entry.skip and entry.skip.approval_id:
                return Help(_("Open the request"), reverse("panel:approval", args=[entry.skip.approval_id]))
            case "stop_blocking_run" if entry.skip and entry.skip.blocking_run_id:
                return Help(_("The run in the way"), reverse("panel:run", args=[entry.skip.blocking_run_id]))
            case "enable_task" if self.may("task.update") and not task.enabled:
                return Help(_("Enable the task"), reverse("panel:task-enable", args=[p, t]), posts=True)
            case "enable_trigger" if self.may("task.update") and entry.trigger_id in off:
                return Help(_("Enable the trigger"), f"{trigger}enable/", posts=True)
            case "start_now" if self.may("run.start") and task.enabled and not task.archived_at:
                if task.requires_approval:
                    return Help(_("Ask for approval"), reverse("panel:task-run-with", args=[p, t]))
                return Help(_("Run it now"), reverse("panel:task-run", args=[p, t]), posts=True)
            case "change_concurrency" if self.may("task.update"):
                return Help(
                    _("Change what overlaps"), reverse("panel:task-edit", args=[p, t]) + "#f-concurrency"
                )
            case "change_misfire" | "change_rule" if self.may("task.update"):
                return Help(_("Change the trigger"), trigger)
            case "restore_project":
                return Help(_("To the project"), reverse("panel:project", args=[p]))
            case "check_scheduler" | "add_worker" if administrator:
                return Help(_("To the workers"), reverse("panel:workers"))
        return None


class WhyOfProject(Page):
    """Which task, and when; and the starts of the whole project that did not happen."""

    permissions = {"GET": "run.read"}
    template = "panel/skips.html"
    section = "skips"
    title = gettext_lazy("Why did it not run?")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        wanted = request.GET.get("task", "").strip()
        found: Task | None = None
        if wanted:
            try:
                found = tasks.find(self.project.pk, wanted)
            except NotFound:
                found = Task.objects.filter(project_id=self.project.pk, name=wanted, archived_at=None).first()
        if found is not None:
            ref = found.pk if found.archived_at else found.slug
            chosen = urlencode({"hours": request.GET.get("hours", "24")})
            return HttpResponseRedirect(f"{reverse('panel:task-why', args=[p, ref])}?{chosen}")
        page = runs.skips(self.project.pk, cursor=request.GET.get("cursor"))
        newest = Task.objects.filter(project_id=self.project.pk, archived_at=None).order_by(
            "-created_at", "-id"
        )
        return self.show(
            page=page, rows=queries.skip_rows(page.items), wanted=wanted,
            some_tasks=newest[:50], span=Span.read(request), spans=SPANS,
        )  # fmt: skip


def _switched_off(task: Task, entries: Sequence[due.Entry]) -> Set[UUID]:
    """Which triggers are still disabled, as far as the entries ask for it."""
    if not any(entry.action == "enable_trigger" for entry in entries):
        return frozenset()
    return set(Trigger.objects.filter(task_id=task.pk, enabled=False).values_list("pk", flat=True))


def _groups(told: Sequence[Told]) -> list[Group]:
    """Long rows of one outcome become one group; everything else stands alone."""
    found: list[Group] = []
    for _key, same in itertools.groupby(told, key=_outcome):
        row = list(same)
        found += [Group(row)] if len(row) > _FOLD_FROM else [Group([one]) for one in row]
    return found


def _outcome(told: Told) -> tuple[str, str]:
    """What makes two due times the same to tell."""
    return told.entry.status, str(told.entry.sentence)


def _answer(entries: Sequence[due.Entry]) -> str:
    """The page's first sentence: how often it was due, and how often nothing came of it."""
    past = [entry for entry in entries if entry.status != "planned"]
    missing = sum(entry.status in NOT_RUN for entry in past)
    if not past:
        return _("It was not due in this time.")
    count = len(past)
    times = ngettext("It was due %(n)d time.", "It was due %(n)d times.", count) % {"n": count}
    if not missing:
        return _("%(times)s A run was started each time.") % {"times": times}
    rest = ngettext("%(n)d time no run was started.", "%(n)d times no run was started.", missing) % {
        "n": missing
    }
    return task_page.in_a_row([times, rest])


def _moment(text: str) -> datetime | None:
    try:
        at = parse_datetime(text.strip())
    except ValueError:
        return None
    if at is None or not 2000 <= at.year < 9000:
        return None
    return at if timezone.is_aware(at) else timezone.make_aware(at)
