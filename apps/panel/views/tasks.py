"""The list of tasks, and what its row buttons do."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext_lazy

from apps.panel import queries
from apps.panel.page import Action, Page
from apps.runs.services import Skipped, start_run
from apps.tasks import queries as tasks
from apps.tasks.services import copy_task
from apps.triggers import services as triggers


class TaskList(Page):
    permissions = {"GET": "task.read"}
    template = "panel/tasks.html"
    part = "panel/tasks_live.html"
    section = "tasks"
    title = pgettext_lazy("navigation", "Tasks")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        show = request.GET.get("show", "")
        filters = tasks.Filters(
            search=request.GET.get("search", "").strip()[:200] or None,
            label=request.GET.get("label", "")[:64] or None,
            enabled={"enabled": True, "disabled": False}.get(show),
            archived=show == "archived",
        )
        page = queries.task_page(self.project.pk, filters, cursor=request.GET.get("cursor"))
        return self.show(page=page, filters=filters, shown=show, filtered=bool(request.GET))


class TaskAction(Action):
    """An action on the task of the address."""

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:task", kwargs["p"], kwargs["t"])


class RunTask(TaskAction):
    permissions = {"POST": "run.start"}

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        outcome = start_run(
            self.grant,
            task.pk,
            trigger_type="manual",
            idempotency_key=once_key(self.request, f"run:{task.pk}"),
        )
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
        title = _("Archive %(name)s?") % {"name": task.name}
        return self.show(title=title, task=task, p=p)

    def act(self, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        triggers.archive_task(self.grant, task.pk, _version(self.request, task.version))
        self.say(_("Archived: %(name)s.") % {"name": task.name})
        return HttpResponseRedirect(reverse("panel:tasks", args=[p]))


def once_key(request: HttpRequest, what: str) -> str | None:
    """The panel's own idempotency key: a second click on the same page does nothing twice."""
    once = request.POST.get("once", "")
    return f"panel:{what}:{once}" if 8 <= len(once) <= 64 and once.isascii() and once.isprintable() else None


def _version(request: HttpRequest, current: int) -> int:
    text = request.POST.get("version", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else current
