"""The list of tasks, and what its row buttons do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from apps.panel import task_list
from apps.panel.page import Action, Page
from apps.projects.errors import ApprovalRequired
from apps.runs.models import OPEN, Run
from apps.runs.services import Skipped, request_cancel, start_run
from apps.tasks import queries as tasks
from apps.tasks import saved_views
from apps.tasks.models import SavedView, Task
from apps.tasks.services import clear_approval_mark, copy_task
from apps.triggers import examples
from apps.triggers import services as triggers

# Tabs of one's own views; the others are behind "More".
_TABS = 6
_MOST_STOPPED = 100
_NO_RUN = UUID(int=0)
COLUMN_WORDS: tuple[tuple[str, Promise], ...] = (
    ("state", gettext_lazy("State")),
    ("last", gettext_lazy("Last run")),
    ("history", pgettext_lazy("column", "History")),
    ("next", gettext_lazy("Next run")),
)
SEARCH_HELP: tuple[tuple[str, Promise], ...] = (
    ("backup", gettext_lazy("anywhere: name, command, label or rule")),
    ("name:feed", gettext_lazy("in the name or short name")),
    ("command:pg_dump", gettext_lazy("in what it runs")),
    ("schedule:@daily", gettext_lazy("in its rule, or by the kind of its trigger")),
    ("label:nightly", gettext_lazy("with such a label")),
    ("status:failed", gettext_lazy("failed, succeeded, running, queued, lost, idle, disabled, failing")),
)


@dataclass(frozen=True)
class Look:
    """How a person looks at the list: what is asked for, and which columns how close together."""

    wanted: task_list.Wanted
    compact: bool
    hidden: frozenset[str]
    view: SavedView | None

    @property
    def differs(self) -> bool:
        """Whether it is no longer what the saved view says."""
        view = self.view
        if view is None:
            return False
        kept = (view.search, view.order, view.compact, frozenset(view.hidden))
        return kept != (self.wanted.search, self.wanted.order, self.compact, self.hidden)


def look(query: QueryDict, views: Sequence[SavedView]) -> Look:
    """The look of an address: a saved view, and what the address says beyond it."""
    view = next((one for one in views if str(one.pk) == query.get("view")), None)
    search = query.get("search", view.search if view else "").strip()[: saved_views.MAX_SEARCH]
    order = query.get("order", view.order if view else SavedView.Order.USUAL)
    show = query.get("show", "")
    hidden = frozenset(view.hidden if view else ())
    compact = view.compact if view else False
    if "columns" in query:
        hidden = frozenset(saved_views.COLUMNS) - set(query.getlist("column"))
        compact = query.get("compact") == "1"
    return Look(
        task_list.Wanted(
            search,
            order if order in SavedView.Order.values else SavedView.Order.USUAL,
            show if show in ("enabled", "disabled", "archived") else "",
        ),
        compact,
        hidden,
        view,
    )


class TaskList(Page):
    permissions = {"GET": "task.read"}
    template = "panel/tasks.html"
    part = "panel/tasks_live.html"
    section = "tasks"
    title = pgettext_lazy("navigation", "Tasks")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        views = saved_views.of_person(self.project.pk, self.visitor.principal.subject.id)
        now = look(request.GET, views)
        address = reverse("panel:task", args=[p, "--t--"])
        page = task_list.page(self.project.pk, now.wanted, request.GET.get("cursor"), address=address)
        first = now.wanted == task_list.Wanted() and not request.GET.get("cursor")
        return self.show(
            page=page,
            look=now,
            views=views,
            shown_views=views[:_TABS],
            more_views=views[_TABS:],
            first_view=views[0].pk if views else None,
            last_view=views[-1].pk if views else None,
            columns=[(name, word, name not in now.hidden) for name, word in COLUMN_WORDS],
            filtered=not first,
            examples=bool(page.items) and examples.any_left(self.project.pk),
            search_help=SEARCH_HELP,
            runs_address=reverse("panel:run", args=[_NO_RUN]).replace(f"{_NO_RUN}/", ""),
        )


class TaskAction(Action):
    """An action on the task of the address."""

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:task", kwargs["p"], kwargs["t"])


class RunTask(TaskAction):
    permissions = {"POST": "run.start"}

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        try:
            outcome = start_run(
                self.grant,
                task.pk,
                trigger_type="manual",
                idempotency_key=once_key(self.request, f"run:{task.pk}"),
            )
        except ApprovalRequired:
            return to_ask(self, task)
        if isinstance(outcome, Skipped):
            self.say(_("Not started: an earlier run of %(name)s is still going.") % {"name": task.name})
            return self.after(p=p, t=t)
        run = reverse("panel:run", args=[outcome.run.pk])
        if self.request.POST.get("then") == "open":
            return HttpResponseRedirect(run)
        self.say(
            format_html(
                '{} <a href="{}">{}</a>',
                _("Started: %(name)s.") % {"name": task.name},
                run,
                _("Open the run"),
            )
        )
        return self.after(p=p, t=t)


class SetEnabled(TaskAction):
    """Enables or disables; disabling takes queued runs out of the queue."""

    permissions = {"POST": "task.update"}
    enabled = True

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        triggers.set_task_enabled(self.grant, task.pk, task.version, self.enabled)
        if self.enabled:
            self.say(_("Enabled: %(name)s.") % {"name": task.name})
        else:
            self.say(
                _("Disabled: %(name)s. None of its runs waits in the queue any more.") % {"name": task.name}
            )
        return self.after(p=p, t=t)


class EmptyQueue(TaskAction):
    """Takes every waiting run of the task out of the queue; what runs goes on."""

    permissions = {"POST": "run.stop"}

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        count = triggers.empty_queue(self.grant, task.pk)
        said = ngettext(
            "%(count)s run was taken out of the queue.", "%(count)s runs were taken out of the queue.", count
        )
        self.say(said % {"count": count})
        return self.after(p=p, t=t)


class SetPinned(TaskAction):
    """Keeps a task on top of the list, or lets it go back to its place."""

    permissions = {"POST": "task.update"}
    pinned = True

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        triggers.change_task(self.grant, task.pk, task.version, {"pinned": self.pinned})
        said = _("Pinned: %(name)s.") if self.pinned else _("No longer pinned: %(name)s.")
        self.say(said % {"name": task.name})
        return self.back("panel:tasks", p)


class MarkTask(TaskAction):
    """From now on each start of a task needs an approval."""

    permissions = {"POST": "task.update"}

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        triggers.change_task(self.grant, task.pk, task.version, {"requires_approval": True})
        self.say(_("Each start of %(name)s needs an approval now.") % {"name": task.name})
        return self.after(p=p, t=t)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:task-settings", kwargs["p"], kwargs["t"])


class ClearMark(MarkTask):
    """Lets a task be started without an approval again."""

    permissions = {"POST": "policy.manage"}
    fresh = True
    fresh_because = gettext_lazy(
        "This lets a task run without an approval. It happens as soon as you have shown that it is you."
    )

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        clear_approval_mark(self.grant, task.pk, task.version)
        self.say(_("%(name)s is started without an approval again.") % {"name": task.name})
        return self.after(p=p, t=t)


class CopyTask(TaskAction):
    permissions = {"POST": "task.create"}

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        copy = copy_task(self.grant, task.pk)
        self.say(_("Copied as %(name)s.") % {"name": copy.name})
        return HttpResponseRedirect(reverse("panel:task-edit", args=[p, copy.slug]))


class ArchiveTask(TaskAction):
    """Asks once, then archives: queued runs end, history stays."""

    permissions = {"GET": "task.delete", "POST": "task.delete"}
    template = "panel/task_archive.html"
    section = "tasks"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        standing = Run.objects.filter(task_id=task.pk, status__in=OPEN - {"lost"}).order_by(
            "-created_at", "-id"
        )
        found = list(standing[:_MOST_STOPPED])
        return self.show(
            title=_("Archive %(name)s?") % {"name": task.name},
            task=task,
            queued=sum(run.status == "queued" for run in found),
            live=[run for run in found if run.status != "queued"],
        )

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        stop = self.also("run.stop") if self.request.POST.get("live") == "stop" else None
        triggers.archive_task(self.grant, task.pk, _version(self.request, task.version))
        if stop:
            going = Run.objects.filter(task_id=task.pk, status__in=OPEN - {"lost"})
            for run_id in list(going.values_list("pk", flat=True)[:_MOST_STOPPED]):
                request_cancel(stop, run_id)
        self.say(_("Archived: %(name)s.") % {"name": task.name})
        return HttpResponseRedirect(reverse("panel:tasks", args=[p]))


def to_ask(page: Page, task: Task, query: str = "") -> HttpResponse:
    """To where a start is asked for that needs an approval; nothing has happened."""
    page.say(_("Nothing was started: %(name)s needs an approval. Ask for it here.") % {"name": task.name})
    address = reverse("panel:task-run-with", args=[page.project.slug, task.slug])
    return HttpResponseRedirect(address + query)


def once_key(request: HttpRequest, what: str) -> str | None:
    """The panel's own idempotency key: a second click on the same page does nothing twice."""
    once = request.POST.get("once", "")
    return f"panel:{what}:{once}" if 8 <= len(once) <= 64 and once.isascii() and once.isprintable() else None


def _version(request: HttpRequest, current: int) -> int:
    text = request.POST.get("version", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else current
