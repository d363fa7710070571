"""Workers of this installation; instance administrators only."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core import clock
from apps.dispatch.models import RunDispatchLease, Worker
from apps.dispatch.services.workers import set_draining
from apps.panel.page import ADMINISTRATOR, ORIGIN, Action, Page
from apps.runs.models import Run

MOST = 200


class Workers(Page):
    permissions = {"GET": ADMINISTRATOR}
    template = "panel/workers.html"
    part = "panel/workers_live.html"
    section = "workers"
    title = gettext_lazy("Workers")

    def get(self, request: HttpRequest) -> HttpResponse:
        found = list(Worker.objects.order_by("node_id", "id")[:MOST])
        carried: dict[str, list[RunDispatchLease]] = {}
        leases = (
            RunDispatchLease.objects.filter(status="leased").select_related("run").order_by("acquired_at")
        )
        for lease in leases[:1000]:
            carried.setdefault(lease.worker_id, []).append(lease)
        now = clock.now()
        rows = [
            {
                "worker": worker,
                "name": _short(worker.pk),
                "runs": carried.get(worker.pk, []),
                "silent": worker.status != "offline" and worker.lease_expires_at <= now,
                "used": worker.max_concurrent_runs - worker.available_slots,
                "labels": worker.capabilities.get("labels", {}),
            }
            for worker in found
        ]
        up = [worker for worker in found if worker.status == "online" and worker.lease_expires_at > now]
        # The very condition of the candidates' index.
        waiting = Run.objects.filter(
            status="queued", execution_owner="runtime", holds_place=True, cancel_requested_at=None
        )
        return self.show(
            rows=rows,
            anyone=bool(up),
            used=sum(worker.max_concurrent_runs - worker.available_slots for worker in up),
            total=sum(worker.max_concurrent_runs for worker in up),
            queued=len(waiting.order_by("-priority", "queued_at", "id").values_list("pk")[:100]),
        )


def _short(worker_id: str) -> str:
    """`…749be0:1`: a node's id is random, its end tells it from the others."""
    return worker_id if len(worker_id) <= 16 else f"…{worker_id[-8:]}"


class SetDraining(Action):
    """Stops or resumes taking new runs; what runs goes on."""

    permissions = {"POST": ADMINISTRATOR}
    draining = True

    def act(self, worker: str) -> HttpResponse:
        set_draining(
            self.draining, worker_id=worker, actor=self.visitor.principal.subject.pair, origin=ORIGIN
        )
        self.say(
            _("It takes no new runs; what runs goes on to its end.")
            if self.draining
            else _("It takes runs again.")
        )
        return self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:workers")
