"""Making and changing a task."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core import canonical
from apps.core.errors import InvalidInput, VersionConflict
from apps.panel import differences, form_values, queries, retry_part
from apps.panel.page import Page
from apps.panel.task_form import CONCURRENCY, KINDS, LANGUAGES, TaskForm
from apps.panel.trigger_form import BY_HAND, MANUAL, TriggerForm
from apps.panel.trigger_form import KINDS as TRIGGER_KINDS
from apps.panel.views.task_triggers import builder
from apps.panel.views.tasks import once_key
from apps.projects.errors import ApprovalRequired
from apps.runs.services import Skipped, start_run
from apps.tasks import queries as tasks
from apps.tasks.errors import SlugTaken, TaskArchived
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft
from apps.triggers import queries as triggers
from apps.triggers.errors import ScheduleInvalid
from apps.triggers.examples import STARTERS
from apps.triggers.services import change_task
from apps.triggers.services.making import Rights, make_task
from apps.vault import queries as vault
from apps.vault.errors import SecretDisabled

STARTER_WORDS: tuple[tuple[str, str | Promise], ...] = (
    ("python", "Python"), ("node", "Node.js"), ("shell", gettext_lazy("Shell")),
)  # fmt: skip
# A webhook's address is shown once, on a page of its own: it is added when the task is there.
_FIRST_KINDS = (MANUAL, *(kind for kind in TRIGGER_KINDS if kind[0] != "webhook"))


class TaskFormPage(Page):
    template = "panel/task_form.html"
    section = "tasks"

    def form_page(self, form: TaskForm, *, status: int = 200, **context: Any) -> HttpResponse:
        """The form with what is in it."""
        return self.show(
            status,
            form=form,
            kinds=KINDS,
            languages=LANGUAGES,
            concurrency=CONCURRENCY,
            safeties=retry_part.SAFETIES,
            **self._secrets(form),
            **context,
        )

    def _secrets(self, form: TaskForm) -> dict[str, Any]:
        """Names to choose from, for those who may list them, and which of those in the form do not exist yet."""
        named = [secret for _variable, secret, _way in form.secrets if secret]
        if not self.may("secret.manage"):
            return {}
        return {
            "secret_names": vault.names(self.project.pk),
            "unknown_secrets": vault.unknown(self.project.pk, named) if named else [],
        }

    def saved(self, task: Task) -> HttpResponse:
        """To the run when it was asked for too, else to the task."""
        address = reverse("panel:task", args=[self.project.slug, task.slug])
        if self.request.POST.get("do") != "save-and-run":
            return self.leave(address, _("Saved: %(name)s.") % {"name": task.name})
        if not task.enabled:
            return self.leave(address, _("Saved, not started: the task is disabled."))
        key = once_key(self.request, f"run:{task.pk}")
        try:
            outcome = start_run(self.also("run.start"), task.pk, trigger_type="manual", idempotency_key=key)
        except ApprovalRequired:
            ask = reverse("panel:task-run-with", args=[self.project.slug, task.slug])
            return self.leave(ask, _("Saved, not started: it needs an approval. Ask for it here."))
        if isinstance(outcome, Skipped):
            return self.leave(address, _("Saved, not started: an earlier run is still going."))
        return self.leave(reverse("panel:run", args=[outcome.run.pk]), "")

    def leave(self, address: str, said: str) -> HttpResponse:
        """To another page; a form that was sent by script is told where, and forgets its draft first."""
        if said:
            self.say(said)
        if self.request.headers.get("X-Form"):
            return HttpResponse(status=204, headers={"X-Location": address})
        return HttpResponseRedirect(address)


class NewTask(TaskFormPage):
    permissions = {"GET": "task.create", "POST": "task.create"}

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        form = TaskForm.blank()
        starter = request.GET.get("from", "")
        if starter in STARTERS:
            form.values |= {"language": starter, "source": STARTERS[starter]}
        return self.new_page(form, TriggerForm.blank(BY_HAND))

    def post(self, request: HttpRequest, p: str) -> HttpResponse:
        form, when = TaskForm.sent(request.POST, None), TriggerForm.sent(request.POST)
        if "t_kind" not in request.POST:
            when.values["kind"] = BY_HAND
        try:
            draft = TaskDraft(**form.fields())
        except InvalidInput as refusal:
            form.refuse(refusal)
            return self.new_page(form, when, status=400)
        try:
            trigger = when.draft()
            rights = Rights(
                self.grant, *((self.also("task.update"), self.also("run.start")) if trigger else ())
            )
            key = self.creation_key()
            task = make_task(rights, draft, [trigger] if trigger else [], key=key)
        except InvalidInput as refusal:
            # What a trigger refuses is about its own fields; the names of a task's are none of them.
            (when if _about_trigger(refusal, when) else form).refuse(refusal)
        except SlugTaken as refusal:
            form.errors["slug"] = [refusal.detail]
        except SecretDisabled as refusal:
            form.errors["secrets"] = [refusal.detail]
        else:
            return self.saved(task)
        return self.new_page(form, when, status=400)

    def creation_key(self) -> str | None:
        """The same for the same form sent again by the same person: its answer may have been lost on the way."""
        if once_key(self.request, "new-task") is None:
            return None
        sent = self.request.POST
        content = {name: sent.getlist(name) for name in sent if name not in ("csrfmiddlewaretoken", "do")}
        return canonical.digest([self.grant.actor.id, content])

    def new_page(self, form: TaskForm, when: TriggerForm, status: int = 200) -> HttpResponse:
        """The form of a task that does not exist, with the schedule builder in it."""
        seen = when.look(viewer=self.request.POST.get("t_viewer", "")) if when.values["schedule"] else None
        return self.form_page(
            form,
            status=status,
            title=_("New task"),
            starters=STARTER_WORDS,
            starter_texts=json.dumps(STARTERS),
            **builder(when, preview=seen) | {"trigger_kinds": _FIRST_KINDS},
        )


class EditTask(TaskFormPage):
    permissions = {"GET": "task.update", "POST": "task.update"}
    parts = {"when": "panel/_when.html"}

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        if task.archived_at is not None:
            raise TaskArchived
        return self.edit_page(task, TaskForm.of(tasks.view(task)))

    def post(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        form = TaskForm.sent(request.POST, tasks.view(task))
        try:
            task = change_task(self.grant, task.pk, form_values.version(request), form.fields())
        except InvalidInput as refusal:
            form.refuse(refusal)
        except SlugTaken as refusal:
            form.errors["slug"] = [refusal.detail]
        except SecretDisabled as refusal:
            form.errors["secrets"] = [refusal.detail]
        except VersionConflict:
            return self.edit_page(task, form, status=409, stale=True)
        else:
            return self.saved(task)
        return self.edit_page(task, form, status=400, version=form_values.version(request))

    def edit_page(
        self,
        task: Task,
        form: TaskForm,
        *,
        status: int = 200,
        stale: bool = False,
        version: int | None = None,
    ) -> HttpResponse:
        """The form; a stale one says who saved what meanwhile, and saving again puts this one on top."""
        context: dict[str, Any] = {}
        if stale and form.stored is not None:
            author = form.stored.revision.created_by[1]
            context["editor"] = queries.names([author]).get(author, "")
            context["differences"] = differences.between(TaskForm.of(form.stored), form)
        rows = [(one, triggers.words(one), "") for one in triggers.page(task).items]
        return self.form_page(
            form,
            status=status,
            title=_("Edit %(name)s") % {"name": task.name},
            task=task,
            version=version or task.version,
            settings_url=reverse("panel:task-settings", args=[self.project.slug, task.slug]),
            stale=stale,
            rows=rows,
            **context,
        )


def _about_trigger(refusal: InvalidInput, when: TriggerForm) -> bool:
    names = {
        "schedule",
        "timezone",
        "every_ms",
        "at",
        "misfire",
        "catch_up_max",
        "misfire_grace_ms",
        "jitter_ms",
        "input",
    }
    return isinstance(refusal, ScheduleInvalid) or bool(names & refusal.fields.keys()) or bool(when.errors)
