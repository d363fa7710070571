"""What starts a task by itself: the list, the schedule builder, and what a rule means while it is typed."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core.errors import InvalidInput, VersionConflict
from apps.panel import form_values
from apps.panel import queries as people
from apps.panel.page import Action, Page
from apps.panel.trigger_form import KINDS, MISFIRES, UNITS, TriggerForm
from apps.panel.views.task import TaskTab
from apps.tasks import queries as tasks
from apps.tasks.errors import TaskArchived
from apps.tasks.models import Task
from apps.triggers import queries, services
from apps.triggers.api.triggers import hook_url
from apps.triggers.models import Trigger
from apps.triggers.services import Made


def builder(form: TriggerForm, **context: Any) -> dict[str, Any]:
    """What the schedule builder needs beside its texts."""
    return {
        "trigger_form": form,
        "trigger_kinds": KINDS,
        "misfires": MISFIRES,
        "units": UNITS,
        # Monday first, as calendars of both languages have it; cron counts Sunday as 0.
        "weekdays": [((day + 1) % 7, WEEKDAYS[day]) for day in range(7)],
        **context,
    }


class TriggerList(TaskTab):
    """The triggers of a task, each with its rule in words and when it fires next."""

    template = "panel/task_triggers.html"
    parts = {**TaskTab.parts, "when": "panel/_when.html"}
    tab = "triggers"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        page = queries.page(task, cursor=request.GET.get("cursor"))
        names = people.names(trigger.author_id for trigger in page.items)
        rows = [(one, queries.words(one), names.get(one.author_id, "")) for one in page.items]
        return self.tab_page(task, page=page, rows=rows)


class TriggerPage(Page):
    """The schedule builder, as a page or inside a dialog."""

    permissions = {"GET": "task.update", "POST": "task.update"}
    template = "panel/trigger_form.html"
    parts = {"form": "panel/_trigger_dialog.html"}
    section = "tasks"

    def task(self, t: str) -> Task:
        """The task of the address; raises NotFound and TaskArchived."""
        task = tasks.find(self.project.pk, t)
        if task.archived_at is not None:
            raise TaskArchived
        return task

    def form_page(self, task: Task, form: TriggerForm, *, status: int = 200, **context: Any) -> HttpResponse:
        """The builder with what its rule means."""
        viewer = self.request.GET.get("t_viewer") or self.request.POST.get("t_viewer", "")
        seen = form.look(viewer=viewer) if form.values["schedule"] or form.kind != "cron" else None
        return self.show(status, task=task, **builder(form, preview=seen, **context))

    def done(self, task: Task, sentence: str) -> HttpResponse:
        """Back to the list; a dialog is told to close and look anew."""
        address = reverse("panel:task-triggers", args=[self.project.slug, task.slug])
        if self.request.headers.get("X-Part"):
            return HttpResponse(status=204, headers={"X-Location": address})
        self.say(sentence)
        return HttpResponseRedirect(address)

    def made(self, task: Task, made: Made) -> HttpResponse:
        """The secret of a webhook, this once."""
        address = self.request.build_absolute_uri(hook_url(str(made.secret)))
        return self.show(task=task, made=made, address=address, title=_("Webhook"), trigger_form=None)


class NewTrigger(TriggerPage):
    title = gettext_lazy("New trigger")

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        form = TriggerForm.sent(request.GET) if "t_kind" in request.GET else TriggerForm.blank()
        return self.form_page(self.task(t), form)

    def post(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task, form = self.task(t), TriggerForm.sent(request.POST)
        if request.POST.get("do") == "check":
            return self.form_page(task, form)
        try:
            draft = form.draft()
            assert draft is not None
            made = services.create_trigger(self.grant, self.also("run.start"), task.pk, draft)
        except InvalidInput as refusal:
            form.refuse(refusal)
            return self.form_page(task, form, status=400)
        if made.secret:
            return self.made(task, made)
        return self.done(task, _("Added: %(rule)s.") % {"rule": queries.words(made.trigger)})


class EditTrigger(TriggerPage):
    title = gettext_lazy("Change trigger")

    def get(self, request: HttpRequest, p: str, t: str, trigger: str) -> HttpResponse:
        found = queries.find(self.task(t), trigger)
        return self.form_page(found.task, TriggerForm.of(found), trigger=found, version=found.version)

    def post(self, request: HttpRequest, p: str, t: str, trigger: str) -> HttpResponse:
        found = queries.find(self.task(t), trigger)
        task, form, version = found.task, TriggerForm.sent(request.POST), form_values.version(request)
        form.values["kind"] = found.kind
        if request.POST.get("do") == "check":
            return self.form_page(task, form, trigger=found, version=version)
        try:
            changed = services.change_trigger(
                self.grant, self.also("run.start"), task.pk, found.pk, version, form.changes()
            )
        except InvalidInput as refusal:
            form.refuse(refusal)
            return self.form_page(task, form, status=400, trigger=found, version=version)
        except VersionConflict:
            return self.form_page(task, form, status=409, trigger=found, version=found.version, stale=True)
        return self.done(task, _("Changed: %(rule)s.") % {"rule": queries.words(changed)})


class TriggerAction(Action):
    """An action on one trigger; the page it was on is shown again."""

    permissions = {"POST": "task.update"}

    def found(self, t: str, trigger: str) -> Trigger:
        """The trigger of the address."""
        return queries.find(tasks.find(self.project.pk, t), trigger)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:task-triggers", kwargs["p"], kwargs["t"])


class SwitchTrigger(TriggerAction):
    """Enables or disables; enabling never fires the past."""

    enabled = True

    def act(self, p: str, t: str, trigger: str) -> HttpResponse:
        found = self.found(t, trigger)
        services.change_trigger(
            self.grant,
            self.also("run.start"),
            found.task_id,
            found.pk,
            found.version,
            {"enabled": self.enabled},
        )
        said = _("Enabled: %(rule)s.") if self.enabled else _("Disabled: %(rule)s.")
        self.say(said % {"rule": queries.words(found)})
        return self.after(p=p, t=t)


class DeleteTrigger(TriggerAction):
    """Deletes a trigger; what it started stays."""

    def act(self, p: str, t: str, trigger: str) -> HttpResponse:
        found = self.found(t, trigger)
        rule = queries.words(found)
        services.delete_trigger(self.grant, self.also("run.start"), found.task_id, found.pk, found.version)
        self.say(_("Deleted: %(rule)s.") % {"rule": rule})
        return self.after(p=p, t=t)


class RenewSecret(TriggerPage, Action):
    """A new secret address; the old one is dead."""

    permissions = {"POST": "task.update"}

    def act(self, p: str, t: str, trigger: str) -> HttpResponse:
        found = queries.find(self.task(t), trigger)
        made = services.renew_secret(
            self.grant, self.also("run.start"), found.task_id, found.pk, found.version
        )
        return self.made(found.task, made)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:task-triggers", kwargs["p"], kwargs["t"])


class SchedulePreview(Page):
    """What a rule means, as a part of a page, while it is typed."""

    permissions = {"GET": "task.read"}
    template = "panel/_schedule_preview.html"
    section = "tasks"

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        form = TriggerForm.sent(request.GET)
        seen = form.look(viewer=request.GET.get("t_viewer", ""))
        return self.show(trigger_form=form, preview=seen)
