"""Starting a task with input, arguments or a priority of its own."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.core import ids
from apps.core.errors import InvalidInput
from apps.panel import form_values
from apps.panel.page import Page
from apps.panel.views.tasks import once_key
from apps.runs.models import Run
from apps.runs.payloads import open_input
from apps.runs.services import Skipped, start_run
from apps.tasks import queries as tasks
from apps.tasks.models import Task


class RunWith(Page):
    permissions = {"GET": "run.start", "POST": "run.start"}
    template = "panel/run_with.html"
    section = "tasks"

    def get(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        return self.form_page(task, sent=self.given(task, request.GET.get("from", "")))

    def given(self, task: Task, run_id: str) -> dict[str, Any]:
        """What an earlier run of this task was given, for "again with changes"; nothing where it is not to be seen."""
        if not ids.is_uuid7(run_id) or not self.may("artifact.read"):
            return {}
        run = Run.objects.filter(pk=run_id, task_id=task.pk).first()
        if run is None:
            return {}
        self.also("artifact.read")
        given = open_input(run)
        return {
            "input": "" if given.input is None else json.dumps(given.input, ensure_ascii=False, indent=2),
            "args": "\n".join(given.args),
            "priority": str(run.priority),
        }

    def post(self, request: HttpRequest, p: str, t: str) -> HttpResponse:
        task = tasks.find(self.project.pk, t)
        sent = {
            name: request.POST.get(name, "").replace("\r\n", "\n") for name in ("input", "args", "priority")
        }
        try:
            outcome = start_run(
                self.grant,
                task.pk,
                trigger_type="manual",
                input=_object(sent["input"]),
                args=sent["args"].removesuffix("\n").split("\n") if sent["args"].strip("\n") else [],
                priority=_whole(sent["priority"]),
                idempotency_key=once_key(request, f"run-with:{task.pk}"),
            )
        except InvalidInput as refusal:
            return self.form_page(task, 400, sent=sent, errors=refusal.fields or {"input": [refusal.detail]})
        if isinstance(outcome, Skipped):
            self.say(_("Not started: an earlier run of %(name)s is still going.") % {"name": task.name})
            return HttpResponseRedirect(reverse("panel:task", args=[p, t]))
        return HttpResponseRedirect(reverse("panel:run", args=[outcome.run.pk]))

    def form_page(self, task: Task, status: int = 200, **context: Any) -> HttpResponse:
        """The form with what is in it."""
        return self.show(status, title=_("Run %(name)s with…") % {"name": task.name}, task=task, **context)


def _object(text: str) -> dict[str, Any] | None:
    try:
        return form_values.json_object(text)
    except ValueError:
        raise InvalidInput.field("input", form_values.NO_OBJECT) from None


def _whole(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 10):
        raise InvalidInput.field("priority", _("A whole number is expected."))
    return int(text)
