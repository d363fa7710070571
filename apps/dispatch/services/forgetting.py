"""Nodes and workers that were not seen for long go, once nothing names them any more."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef

from apps.core import clock
from apps.core.db import write_transaction
from apps.dispatch.models import CompletionReceiptJournal, EscapedProcesses, Node, RunDispatchLease, Worker

# Without an index over what leases name, each costs a look through them.
BATCH = 10


@write_transaction
def forget_nodes() -> tuple[int, int]:
    """Removes up to BATCH workers, then nodes, that showed no life for as long as histories are kept.

    A worker stays while a lease names it, and a node while it has workers, a drain that somebody asked for, or a
    receipt that may lie on its disk. One that comes back registers anew. Returns how many workers and nodes went.
    """
    silent = clock.now() - timedelta(milliseconds=settings.RETENTION.history_ms)
    leases = RunDispatchLease.objects.filter(worker_id=OuterRef("pk"))
    old = Worker.objects.filter(~Exists(leases), last_heartbeat_at__lte=silent, lease_expires_at__lte=silent)
    workers = list(old.order_by("pk").values_list("pk", flat=True)[:BATCH])
    Worker.objects.filter(pk__in=workers).delete()
    nodes = list(
        Node.objects.filter(
            ~Exists(Worker.objects.filter(node_id=OuterRef("pk"))),
            ~Exists(CompletionReceiptJournal.objects.filter(node_id=OuterRef("pk"))),
            ~Exists(EscapedProcesses.objects.filter(node_id=OuterRef("pk"), done_at__isnull=True)),
            last_heartbeat_at__lte=silent,
            drain_requested_at__isnull=True,
        )
        .order_by("pk")
        .values_list("pk", flat=True)[:BATCH]
    )
    Node.objects.filter(pk__in=nodes).delete()
    return len(workers), len(nodes)
