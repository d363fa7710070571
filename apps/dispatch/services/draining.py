"""Draining and resuming a whole node or one worker place: nothing new is taken, what runs goes on.

A drain is a wish on record: it stays, whatever starts anew, until it is taken back. Saying it again changes nothing.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import F, QuerySet

from apps.audit import services as audit
from apps.core import clock, db, wakeups
from apps.core.db import write_transaction
from apps.dispatch.errors import NodeDraining, NodeNotFound, WorkerNotFound
from apps.dispatch.models import Node, Worker


@write_transaction
def set_node(draining: bool, node_id: str, *, actor: tuple[str, str], origin: str) -> bool:
    """Whether that changed anything. Raises NodeNotFound."""
    node = db.lock(Node.objects.filter(pk=node_id)).first()
    if node is None:
        raise NodeNotFound
    if (node.drain_requested_at is not None) == draining:
        return False
    now = clock.now()
    Node.objects.filter(pk=node_id).update(drain_requested_at=now if draining else None)
    _show(Worker.objects.filter(node_id=node_id), draining, now)
    _tell("node", node_id, draining, actor, origin)
    return True


@write_transaction
def set_worker(draining: bool, worker_id: str, *, actor: tuple[str, str], origin: str) -> bool:
    """Whether that changed anything. Raises WorkerNotFound, or NodeDraining for resuming on a drained node."""
    node_id = Worker.objects.filter(pk=worker_id).values_list("node_id", flat=True).first()
    node = db.lock(Node.objects.filter(pk=node_id)).first()
    worker = db.lock(Worker.objects.filter(pk=worker_id)).first()
    if node is None or worker is None:
        raise WorkerNotFound
    if node.drain_requested_at is not None and not draining:
        raise NodeDraining
    if (worker.drain_requested_at is not None) == draining:
        return False
    now = clock.now()
    chosen = Worker.objects.filter(pk=worker_id)
    chosen.update(drain_requested_at=now if draining else None)
    _show(chosen, draining, now)
    _tell("worker", worker_id, draining, actor, origin)
    return True


def _show(workers: QuerySet[Worker], draining: bool, now: datetime) -> None:
    """What sessions go by; a place that was drained by itself stays so when its node is resumed.

    A place that shows no life is signed off by its drain: somebody knows of it, and nobody need be told any more.
    """
    found = workers.filter(pk__in=[row.pk for row in db.lock(workers.order_by("pk"))])
    if draining:
        silent = found.exclude(status="offline").filter(lease_expires_at__lte=now)
        silent.update(status="offline", version=F("version") + 1, updated_at=now)
        found.filter(status="online").update(status="draining", version=F("version") + 1, updated_at=now)
    else:
        again = found.filter(status="draining", drain_requested_at__isnull=True)
        again.update(status="online", version=F("version") + 1, updated_at=now)


def _tell(kind: str, subject: str, draining: bool, actor: tuple[str, str], origin: str) -> None:
    action = f"{kind}.{'drained' if draining else 'resumed'}"
    audit.record("", actor=actor, action=action, subject=(kind, subject), origin=origin)
    wakeups.ring("runs")
