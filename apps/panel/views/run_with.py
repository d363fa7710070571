"""Starting a task with input, arguments or a priority of its own; asking for it where it needs an approval."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.approvals import services as approvals
from apps.core import canonical, ids
from apps.core.errors import DomainError, Forbidden, InvalidInput, NotFound
from apps.panel import approval_page, approval_words, confirming, form_values
from apps.panel.page import ORIGIN, Page
from apps.panel.views.tasks import once_key
from apps.projects import approval_policy
from apps.runs.models import AloneStart, Run
from apps.runs.payloads import open_input
from apps.runs.services import Alone, Skipped, door, start_run
from apps.tasks import queries as tasks
from apps.tasks.models import Task

# What a button of the page stands for; without a word it is a plain start.
ASK, ALONE, GLASS = "ask", str(AloneStart.Kind.EXEMPT), str(AloneStart.Kind.BREAK_GLASS)
LIVES: tuple[tuple[str, str | Promise], ...] = (
    ("3600000", gettext_lazy("1 hour")),
    ("14400000", gettext_lazy("4 hours")),
    ("86400000", gettext_lazy("24 hours")),
)
TEXTS = ("input", "args", "priority", "risk", "life", "reason")


@dataclass(frozen=True)
class Wish:
    """What was typed, read."""

    input: dict[str, Any] | None = field(repr=False)
    args: list[str] = field(repr=False)
    priority: int | None

    @classmethod
    def read(cls, sent: dict[str, str]) -> Wish:
        """Raises InvalidInput."""
        args = sent["args"].removesuffix("\n").split("\n") if sent["args"].strip("\n") else []
        return cls(_object(sent["input"]), args, _whole(sent["priority"]))


class RunWith(Page):
    permissions = {"GET": "run.start", "POST": "run.start"}
    template = "panel/run_with.html"
    section = "tasks"
    fresh_because = gettext_lazy(
        "This starts what needs an approval, without one. It starts as soon as you have shown that it is you."
    )

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
        sent = {name: request.POST.get(name, "").replace("\r\n", "\n") for name in TEXTS}
        how = request.POST.get("how", "")
        if how == GLASS and (asked := confirming.ask(self)) is not None:
            return asked
        try:
            if how == ASK:
                return self.ask(task, sent, Wish.read(sent))
            return self.start(task, Wish.read(sent), self.alone(how, sent))
        except InvalidInput as refusal:
            errors = _named(refusal.fields) or {"input": [refusal.detail]}
            return self.form_page(task, 400, sent=sent, errors=errors)
        except (NotFound, Forbidden):
            raise
        except DomainError as refusal:
            if not 400 <= refusal.status < 500 and refusal.status != 503:
                raise
            task = tasks.find(self.project.pk, t)
            return self.form_page(task, refusal.status, sent=sent, errors={"form": [refusal.detail]})

    def alone(self, how: str, sent: dict[str, str]) -> Alone | None:
        """What a person says who starts alone; the service looks whether they may."""
        if how == ALONE:
            return Alone()
        if how != GLASS:
            return None
        said = Alone(sent["reason"])
        if self.request.POST.get("sure") != "1":
            raise InvalidInput.field("sure", _("Say that you mean it."))
        return said

    def start(self, task: Task, wish: Wish, alone: Alone | None) -> HttpResponse:
        """Starts it and leads to the run."""
        outcome = start_run(
            self.grant,
            task.pk,
            trigger_type="manual",
            input=wish.input,
            args=wish.args,
            priority=wish.priority,
            idempotency_key=once_key(self.request, f"run-with:{task.pk}"),
            alone=alone,
        )
        if isinstance(outcome, Skipped):
            self.say(_("Not started: an earlier run of %(name)s is still going.") % {"name": task.name})
            return HttpResponseRedirect(reverse("panel:task", args=[self.project.slug, task.slug]))
        return HttpResponseRedirect(reverse("panel:run", args=[outcome.run.pk]))

    def ask(self, task: Task, sent: dict[str, str], wish: Wish) -> HttpResponse:
        """Files the request and leads to its page. The same page sent again finds the same request."""
        if sent["life"] not in dict(LIVES):
            raise InvalidInput.field("life", _("Choose how long it may wait."))
        who, once = self.visitor.principal.subject.id, self.request.POST.get("once", "")[:64]
        same = canonical.digest([who, once, str(task.pk), sent]) if len(once) >= 8 else ids.token(16)
        filed = approvals.file_request(
            self.visitor.principal,
            self.project.pk,
            approvals.Wish(
                id=f"panel-{same[:32]}",
                task=str(task.pk),
                input=wish.input,
                args=wish.args,
                priority=wish.priority,
                risk=sent["risk"],
                expires_in_ms=int(sent["life"]),
            ),
            origin=ORIGIN,
        )
        self.say(_("Asked. Nothing has been started yet."))
        return HttpResponseRedirect(reverse("panel:approval", args=[filed.request.pk]))

    def form_page(self, task: Task, status: int = 200, **context: Any) -> HttpResponse:
        """The form with what is in it."""
        title = _("Run %(name)s with…")
        if task.requires_approval:
            title = _("Ask for approval to run %(name)s")
            policy = approval_policy.of(self.project.pk)
            context |= {
                "ways": door.ways(self.visitor.principal.subject, self.project.pk),
                "deciders": approval_page.deciders(policy, self.visitor.principal.subject.id),
                "risks": list(approval_words.RISKS.items()),
                "lives": LIVES,
            }
        return self.show(status, title=title % {"name": task.name}, task=task, **context)


def _named(fields: Any) -> dict[str, Any]:
    """The sentences of a service by the field that shows them."""
    places = {"expires_in_ms": "life", "id": "form", "task": "form"}
    return {places.get(name, name): sentences for name, sentences in fields.items()}


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
