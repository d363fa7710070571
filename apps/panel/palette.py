"""What the palette finds, and the list of keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.db.models import Q
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from apps.panel import navigation, queries
from apps.panel.visitors import Visitor
from apps.projects.models import Project
from apps.runs.models import Run
from apps.tasks.models import Task

EACH = 8
MOST_GOING = 100


@dataclass(frozen=True)
class Hit:
    """One line: a link, or with `post` a button of the page's form. `state` draws a run's state instead of the icon."""

    icon: str
    title: str
    url: str
    note: str = ""
    post: bool = False
    state: str = ""


@dataclass
class Hits:
    title: str
    hits: list[Hit] = field(default_factory=list)


def hits(visitor: Visitor, project: Project | None, wanted: str) -> list[Hits]:
    """What fits, at most EACH of a kind, empty kinds left out; three queries."""
    found = [Hits(pgettext("palette", "Pages"), _places(visitor, project, wanted))]
    if project is not None and visitor.may(project, "task.read"):
        tasks = _tasks(project, wanted)
        found.append(Hits(pgettext("navigation", "Tasks"), [_task(project, task) for task in tasks]))
        if visitor.may(project, "run.start") and project.status == "active":
            ready = [task for task in tasks if task.enabled]
            found.append(Hits(pgettext("verb", "Run"), [_start(project, task) for task in ready]))
    if project is not None and visitor.may(project, "run.read"):
        going = _going(project, wanted)
        found.append(Hits(_("Running now"), [_watch(run) for run in going]))
        if visitor.may(project, "run.stop"):
            found.append(Hits(pgettext("verb", "Stop"), [_stop(run) for run in going]))
    order = [0, 1, 2, 3, 4] if not wanted else [1, 2, 3, 4, 0]
    return [found[at] for at in order if at < len(found) and found[at].hits]


def _fits(title: str, wanted: str) -> bool:
    return all(word in title.casefold() for word in wanted.casefold().split())


def _places(visitor: Visitor, project: Project | None, wanted: str) -> list[Hit]:
    places = [
        Hit(entry.icon, str(entry.title), entry.url)
        for group in navigation.groups(visitor, project, 0, 0, team=True)
        for entry in group.entries
    ]
    if project is not None and visitor.may(project, "task.create"):
        places.insert(0, Hit("plus", _("New task"), reverse("panel:task-new", args=[project.slug])))
    places.append(Hit("tokens", _("My tokens"), reverse("panel:tokens")))
    places.append(Hit("keyboard", _("Keys"), reverse("panel:keys")))
    if len(visitor.projects) > 1:
        places += [
            Hit(
                "project",
                one.name,
                f"{reverse('panel:index')}?project={one.slug}",
                _("Switch to this project"),
            )
            for one in visitor.projects
            if project is None or one.pk != project.pk
        ]
    return [hit for hit in places if _fits(hit.title, wanted)][:EACH]


def _tasks(project: Project, wanted: str) -> list[Task]:
    rows = Task.objects.filter(project_id=project.pk, archived_at=None)
    for word in wanted.split():
        rows = rows.filter(Q(name__icontains=word) | Q(slug__icontains=word))
    return list(rows.order_by("-pinned", "-enabled", "-created_at", "-id")[:EACH])


def _going(project: Project, wanted: str) -> list[Run]:
    found: list[Run] = []
    for status in ("running", "dispatching"):
        rows = Run.objects.filter(project_id=project.pk, status=status).order_by("-created_at", "-id")
        found += [run for run in rows[:MOST_GOING] if _fits(run.task_name, wanted)]
    return found[:EACH]


def _task(project: Project, task: Task) -> Hit:
    return Hit("tasks", task.name, reverse("panel:task", args=[project.slug, task.slug]), task.slug)


def _start(project: Project, task: Task) -> Hit:
    if task.requires_approval:
        ask = reverse("panel:task-run-with", args=[project.slug, task.slug])
        return Hit("approve", _("Ask for approval to run %(name)s") % {"name": task.name}, ask)
    url = reverse("panel:task-run", args=[project.slug, task.slug])
    return Hit("play", _("Run %(name)s") % {"name": task.name}, url, post=True)


def _watch(run: Run) -> Hit:
    return Hit(
        "runs", run.task_name, reverse("panel:run", args=[run.pk]), queries.short(run.pk), state=run.status
    )


def _stop(run: Run) -> Hit:
    title = _("Stop %(name)s") % {"name": run.task_name}
    return Hit("stop", title, reverse("panel:run-stop", args=[run.pk]), queries.short(run.pk))


# Keys with what they do, by where they work. `Mod` is ⌘ on a Mac, Ctrl elsewhere.
KEYS: tuple[tuple[Promise, tuple[tuple[tuple[str, ...], Promise], ...]], ...] = (
    (
        gettext_lazy("Everywhere"),
        (
            (("Mod K",), gettext_lazy("search: go to, run, stop, switch project")),
            (("?",), gettext_lazy("these keys")),
            (("/",), gettext_lazy("search in this page or log")),
            (("g d", "g t", "g r", "g a", "g s"), gettext_lazy("dashboard, tasks, runs, approvals, secrets")),
            (("n",), gettext_lazy("new task")),
            (("Esc",), gettext_lazy("close what is on top")),
        ),
    ),
    (
        pgettext_lazy("keys", "Lists"),
        (
            (("j", "k"), gettext_lazy("next row, previous row")),
            (("Enter",), gettext_lazy("open the row")),
            (("x",), gettext_lazy("select the row")),
            (("r", "s"), gettext_lazy("run; stop, which asks first")),
            (("l", "e"), gettext_lazy("log; edit")),
        ),
    ),
    (
        pgettext_lazy("keys", "Log"),
        (
            (("f",), gettext_lazy("follow or pause")),
            (("w",), gettext_lazy("wrap long lines")),
            (("Home", "End"), gettext_lazy("beginning and end")),
            (("Enter", "Shift Enter"), gettext_lazy("next hit, previous hit")),
        ),
    ),
    (
        pgettext_lazy("keys", "Task form"),
        (
            (("Mod S",), gettext_lazy("save")),
            (("Mod Enter",), gettext_lazy("save and run")),
            (("Esc Tab",), gettext_lazy("leave the editor")),
        ),
    ),
)
