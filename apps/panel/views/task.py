"""One task: its runs, its script, its revisions, what did not run."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from apps.panel import queries
from apps.panel.page import Page
from apps.panel.task_form import CONCURRENCY, TaskForm
from apps.runs import queries as runs
from apps.tasks import queries as tasks
from apps.tasks.models import Task


class TaskTab(Page):
    """A tab of the task's page."""

    permissions = {"GET": "task.read"}
    section = "tasks"
    tab = ""

    def tab_page(self, task: Task, **context: Any) -> HttpResponse:
        """The tab in the task's frame."""
        ref = task.pk if task.archived_at else task.slug
        return self.show(title=task.name, task=task, ref=ref, tab=self.tab, **context)


class TaskRuns(TaskTab):
    """The first tab: what it does now, and its runs."""

    template = "panel/task_runs.html"
    part = "panel/task_runs_live.html"
    tab = "runs"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        self.also("run.read")
        page = runs.page(self.project.pk, runs.RunFilter(task_id=task.pk), cursor=request.GET.get("cursor"))
        return self.tab_page(task, page=page, rows=queries.run_rows(page.items))


class TaskScript(TaskTab):
    """What it executes, read only."""

    template = "panel/task_script.html"
    tab = "script"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        view = tasks.view(task)
        overlap = next(word for value, word, _help in CONCURRENCY if value == task.concurrency)
        return self.tab_page(task, form=TaskForm.of(view), view=view, concurrency_word=overlap)


class TaskRevisions(TaskTab):
    """Who changed what is executed, and when."""

    template = "panel/task_revisions.html"
    tab = "revisions"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        page = tasks.revision_page(task, cursor=request.GET.get("cursor"))
        people = queries.names(item.revision.created_by[1] for item in page.items)
        rows = [(item.revision, people.get(item.revision.created_by[1], "")) for item in page.items]
        return self.tab_page(task, page=page, rows=rows, current_revision=task.revision.task_revision)


class TaskRevision(TaskTab):
    """One revision, word for word."""

    template = "panel/task_script.html"
    tab = "revisions"

    def get(self, request: HttpRequest, p: str, t: str, revision: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        view = tasks.revision(task, revision)
        form = TaskForm.of_revision(view)
        return self.tab_page(task, form=form, view=view, revision=view.revision)


class TaskSkips(TaskTab):
    """Starts of this task that did not happen."""

    template = "panel/task_skips.html"
    tab = "skips"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        self.also("run.read")
        page = runs.skips(self.project.pk, task_id=task.pk, cursor=request.GET.get("cursor"))
        return self.tab_page(task, page=page, rows=queries.skip_rows(page.items))
