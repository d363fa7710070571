"""Making and changing a task."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.core.errors import InvalidInput, VersionConflict
from apps.panel import queries
from apps.panel.page import Page
from apps.panel.task_form import CONCURRENCY, KINDS, LANGUAGES, TaskForm
from apps.panel.views.tasks import once_key
from apps.runs.services import Skipped, start_run
from apps.tasks import queries as tasks
from apps.tasks.errors import SlugTaken, TaskArchived
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft, create_task
from apps.triggers.services import change_task


class TaskFormPage(Page):
    template = "panel/task_form.html"
    section = "tasks"

    def form_page(self, form: TaskForm, *, status: int = 200, **context: Any) -> HttpResponse:
        """The form with what is in it."""
        return self.show(
            status, form=form, kinds=KINDS, languages=LANGUAGES, concurrency=CONCURRENCY, **context
        )

    def saved(self, task: Task) -> HttpResponse:
        """To the run when it was asked for too, else to the task."""
        address = reverse("panel:task", args=[self.project.slug, task.slug])
        if self.request.POST.get("do") != "save-and-run":
            self.say(_("Saved: %(name)s.") % {"name": task.name})
            return HttpResponseRedirect(address)
        key = once_key(self.request, f"run:{task.pk}")
        outcome = start_run(self.also("run.start"), task.pk, trigger_type="manual", idempotency_key=key)
        if isinstance(outcome, Skipped):
            self.say(_("Saved, not started: an earlier run is still going."))
            return HttpResponseRedirect(address)
        return HttpResponseRedirect(reverse("panel:run", args=[outcome.run.pk]))


class NewTask(TaskFormPage):
    permissions = {"GET": "task.create", "POST": "task.create"}

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        return self.form_page(TaskForm.blank(), title=_("New task"))

    def post(self, request: HttpRequest, p: str) -> HttpResponse:
        form = TaskForm.sent(request.POST, None)
        try:
            task = create_task(self.grant, TaskDraft(**form.fields()))
        except InvalidInput as refusal:
            form.refuse(refusal)
        except SlugTaken as refusal:
            form.errors["slug"] = [refusal.detail]
        else:
            return self.saved(task)
        return self.form_page(form, status=400, title=_("New task"))


class EditTask(TaskFormPage):
    permissions = {"GET": "task.update", "POST": "task.update"}

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        if task.archived_at is not None:
            raise TaskArchived
        return self.edit_page(task, TaskForm.of(tasks.view(task)))

    def post(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        form = TaskForm.sent(request.POST, tasks.view(task))
        try:
            task = change_task(self.grant, task.pk, _version(request), form.fields())
        except InvalidInput as refusal:
            form.refuse(refusal)
        except SlugTaken as refusal:
            form.errors["slug"] = [refusal.detail]
        except VersionConflict:
            return self.edit_page(task, form, status=409, stale=True)
        else:
            return self.saved(task)
        return self.edit_page(task, form, status=400, version=_version(request))

    def edit_page(
        self,
        task: Task,
        form: TaskForm,
        *,
        status: int = 200,
        stale: bool = False,
        version: int | None = None,
    ) -> HttpResponse:
        """The form; a stale one says who saved meanwhile, and saving again puts this one on top."""
        editor = ""
        if stale and form.stored is not None:
            author = form.stored.revision.created_by[1]
            editor = queries.names([author]).get(author, "")
        return self.form_page(
            form,
            status=status,
            title=_("Edit %(name)s") % {"name": task.name},
            task=task,
            version=version or task.version,
            stale=stale,
            editor=editor,
        )


def _version(request: HttpRequest) -> int:
    text = request.POST.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput.field("version", _("The form is not complete; reload the page."))
    return int(text)
