"""What a person does about a stop that came to nothing, and about processes that outlived one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from apps.dispatch import cancellations
from apps.dispatch.errors import StopNotOpen
from apps.dispatch.services import escaped, stop_decision
from apps.panel.page import Action
from apps.panel.views.run import RunPage
from apps.runs import queries as runs


class ResolveStop(RunPage, Action):
    """Asks what shall become of a stop that did not reach its process, and why."""

    permissions = {"GET": "run.stop", "POST": "run.stop"}
    template = "panel/run_stop_resolve.html"

    def get(self, request: HttpRequest, run: UUID) -> HttpResponse:
        found, delivery = runs.get(run), cancellations.find(run)
        if found.ended or delivery is None or delivery.status not in stop_decision.OPEN:
            self.complain(StopNotOpen())
            return self.after(run=run)
        title = _("The stop of %(name)s") % {"name": found.task_name}
        return self.show(
            title=title,
            run=found,
            blocked=delivery.status == "blocked",
            delivered=delivery.status == "dispatched",
        )

    def act(self, run: UUID) -> HttpResponse:
        decision = self.request.POST.get("decision", "")
        stop_decision.resolve(self.grant, run, decision, self.request.POST.get("reason", "").strip())
        self.say(_("The stop is delivered again.") if decision == "verify" else _("The run is closed."))
        return self.after(run=run)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:run", kwargs["run"])


class KillEscaped(RunPage, Action):
    """Has exactly the processes ended that outlived the stop."""

    permissions = {"POST": "run.stop"}

    def act(self, run: UUID) -> HttpResponse:
        escaped.request_kill(self.grant, run)
        self.say(_("The worker was asked to end what is left."))
        return self.after(run=run)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:run", kwargs["run"])
