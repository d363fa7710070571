"""One task: its runs, its script, its revisions, its settings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from apps.core.errors import InvalidInput
from apps.panel import differences, queries, runner_part, task_page
from apps.panel.page import Action, Page
from apps.panel.task_form import CONCURRENCY, TaskForm
from apps.runs import queries as runs
from apps.tasks import queries as tasks
from apps.tasks.models import Task
from apps.tasks.services import reuse_revision


class TaskTab(Page):
    """A tab of the task's page."""

    permissions = {"GET": "task.read"}
    parts = {"head": "panel/_task_head.html"}
    section = "tasks"
    tab = ""

    def tab_page(self, task: Task, *, status: int = 200, **context: Any) -> HttpResponse:
        """The tab in the task's frame."""
        ref = task.pk if task.archived_at else task.slug
        if self.request.headers.get("X-Part") in (None, "head"):
            context["head"] = task_page.head(task)
            context["no_runner"] = runner_part.missing(tasks.view(task))
        frame: dict[str, Any] = {"title": task.name, "task": task, "ref": ref, "tab": self.tab}
        return self.show(status, **frame | context)


class TaskRuns(TaskTab):
    """The first tab: the last thirty days, and its runs."""

    template = "panel/task_runs.html"
    part = "panel/task_runs_live.html"
    tab = "runs"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        self.also("run.read")
        page = runs.page(self.project.pk, runs.RunFilter(task_id=task.pk), cursor=request.GET.get("cursor"))
        days = [] if request.headers.get("X-Part") else task_page.days(task, task_page.runs_address(p, task))
        return self.tab_page(
            task,
            page=page,
            rows=queries.run_rows(page.items),
            days=days,
            any_day=any(day.runs for day in days),
        )


class TaskScript(TaskTab):
    """What it executes, read only."""

    template = "panel/task_script.html"
    tab = "script"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        view = tasks.view(task)
        overlap = next(word for value, word, _help in CONCURRENCY if value == task.concurrency)
        return self.tab_page(task, form=TaskForm.of(view), view=view, concurrency_word=overlap)


class TaskSettings(TaskTab):
    """Switches and what ends a task."""

    template = "panel/task_settings.html"
    tab = "settings"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        return self.tab_page(tasks.find(self.project.pk, t))


class TaskRevisions(TaskTab):
    """Who changed what is executed, and when."""

    template = "panel/task_revisions.html"
    tab = "revisions"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        page = tasks.revision_page(task, cursor=request.GET.get("cursor"))
        people = queries.names(item.revision.created_by[1] for item in page.items)
        forms = [TaskForm.of_revision(item) for item in page.items]
        # What a revision changed is known where the one before it is on the page too.
        changes = [_names(differences.between(old, new)) for new, old in itertools.pairwise(forms)]
        rows = [
            (item.revision, people.get(item.revision.created_by[1], ""), changed)
            for item, changed in zip(page.items, [*changes, None], strict=False)
        ]
        return self.tab_page(task, page=page, rows=rows, current_revision=task.revision.task_revision)


class TaskRevision(TaskTab):
    """One revision, word for word."""

    template = "panel/task_script.html"
    tab = "revisions"

    def get(self, request: HttpRequest, p: str, t: str, revision: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        view = tasks.revision(task, revision)
        return self.tab_page(
            task,
            form=TaskForm.of_revision(view),
            view=view,
            revision=view.revision,
            is_current=view.revision.task_revision == task.revision.task_revision,
        )


class CompareRevisions(TaskTab):
    """Two revisions side by side, or one over the other."""

    template = "panel/task_compare.html"
    tab = "revisions"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        older, newer = sorted((request.GET.get("a", ""), request.GET.get("b", "")), key=_number)
        before, after = tasks.revision(task, older), tasks.revision(task, newer)
        people = queries.names([before.revision.created_by[1], after.revision.created_by[1]])
        found = differences.between(TaskForm.of_revision(before), TaskForm.of_revision(after))
        return self.tab_page(
            task,
            sides=[(view.revision, people.get(view.revision.created_by[1], "")) for view in (before, after)],
            differences=found,
            language=TaskForm.of_revision(after).language,
            current_revision=task.revision.task_revision,
            inline=request.GET.get("mode") == "inline",
        )


class UseRevision(Action):
    """Makes a new revision that is what an old one was."""

    permissions = {"POST": "task.update"}

    def act(self, p: str, t: str, revision: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        changed = reuse_revision(self.grant, task.pk, task.version, revision)
        if changed.version == task.version:
            self.say(_("It executes this already; nothing was changed."))
        else:
            said = _("Revision %(new)s is what revision %(old)s was.")
            self.say(said % {"new": changed.revision.task_revision, "old": revision})
        return HttpResponseRedirect(reverse("panel:task-revisions", args=[p, t]))

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:task-revisions", kwargs["p"], kwargs["t"])


def _names(found: Sequence[differences.Difference]) -> str:
    """The fields that differ, each once."""
    labels = dict.fromkeys(str(one.label) for one in found)
    return pgettext("list", ", ").join(labels) or _("nothing")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput.field("a", _("Choose two revisions."))
    return int(text)
