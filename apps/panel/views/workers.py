"""Nodes and workers of this installation; instance administrators only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core import clock
from apps.dispatch import queries
from apps.dispatch.models import Node, Worker
from apps.dispatch.queries import NodeView
from apps.dispatch.services import draining, nodes
from apps.panel.page import ADMINISTRATOR, ORIGIN, Action, Page
from apps.runs.models import Run

MOST = 100
SHOWN = 10
# A node that signed off and was not seen since then is not shown any more.
FORGOTTEN_AFTER = timedelta(days=30)


class Workers(Page):
    permissions = {"GET": ADMINISTRATOR}
    template = "panel/workers.html"
    part = "panel/workers_live.html"
    section = "workers"
    title = gettext_lazy("Workers")

    def get(self, request: HttpRequest) -> HttpResponse:
        there = Q(last_heartbeat_at__gt=clock.now() - FORGOTTEN_AFTER) | Exists(
            Worker.objects.filter(node_id=OuterRef("pk")).exclude(status="offline")
        )
        found = list(Node.objects.filter(there).order_by("-last_heartbeat_at", "id")[:MOST])
        cards = [_card(view) for view in queries.view_nodes(found)]
        # The very condition of the candidates' index.
        waiting = Run.objects.filter(
            status="queued", execution_owner="runtime", holds_place=True, cancel_requested_at=None
        )
        return self.show(
            cards=sorted(cards, key=lambda card: (_ORDER[card["view"].state], card["name"])),
            anyone=any(place["open"] for card in cards for place in card["places"]),
            used=sum(card["used"] for card in cards),
            total=sum(card["total"] for card in cards),
            queued=len(waiting.values_list("pk")[:100]),
        )


_ORDER = {"online": 0, "draining": 1, "lost": 2, "drained": 3, "off": 4}


def _card(view: NodeView) -> dict[str, Any]:
    now = clock.now()
    places: list[dict[str, Any]] = []
    for worker in view.workers:
        alive = queries.is_alive(worker, now)
        carried = len(view.carried(worker.pk))
        drains = worker.drain_requested_at is not None or view.node.drain_requested_at is not None
        places.append({
            "worker": worker,
            "alive": alive,
            "open": alive and not drains,
            "silent": worker.status != "offline" and not alive,
            "used": max(carried, worker.max_concurrent_runs - worker.available_slots) if alive else carried,
            "runs": carried,
        })  # fmt: skip
    return {
        "view": view,
        "name": _name(view.node),
        "places": places,
        "used": sum(place["used"] for place in places if place["open"]),
        "total": sum(place["worker"].max_concurrent_runs for place in places if place["open"]),
        "shown": view.leases[:SHOWN],
        "clock_off_s": view.node.clock_skew_ms / 1000 if nodes.is_off(view.node.clock_skew_ms) else None,
    }


def _name(node: Node) -> str:
    """`box …749be0`: hosts may have one name, and a node's id is random; its end tells it from the others."""
    return f"{node.host} …{node.pk[-6:]}"


class SetDraining(Action):
    """Stops or resumes taking new runs, at one place or on a whole node; what runs goes on."""

    permissions = {"POST": ADMINISTRATOR}
    draining = True

    def act(self, worker: str = "", node: str = "") -> HttpResponse:
        actor = self.visitor.principal.subject.pair
        if node:
            draining.set_node(self.draining, node, actor=actor, origin=ORIGIN)
        else:
            draining.set_worker(self.draining, worker, actor=actor, origin=ORIGIN)
        self.say(
            _("It takes no new runs; what runs goes on to its end.")
            if self.draining
            else _("It takes runs again.")
        )
        return self.after()

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:workers")
