"""Workers: sessions register, show that they live, and leave (runs.md §3.7)."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F

from apps.core import bulk, canonical, clock, db, ids, wakeups
from apps.core.db import write_transaction
from apps.dispatch import leases
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.models import Node, RunDispatchLease, Worker
from apps.dispatch.services import nodes

WORKER_TTL_MS = 20_000


def capabilities() -> dict[str, Any]:
    """What this node offers, in the form of runs.md §3.7."""
    return {
        "architecture": platform.machine().lower()[:32],
        "operating_system": platform.system().lower()[:32],
        "executors": ["local_process"],
        "runtimes": [],
        "labels": dict(sorted(settings.NODE_LABELS.items())),
        "capacity": {"cpu_cores": min(os.cpu_count() or 1, 4096)},
        "features": [],
    }


@write_transaction
def register(node_id: str, slot: int, slots: int, roles: Sequence[str]) -> Worker:
    """Opens a session of a node's worker place: a new session id and generation + 1 shut out the old one.

    A node, or a place, that was told to drain stays draining.
    """
    node = nodes.meet(node_id)
    now = clock.now()
    worker_id = f"{node_id}:{slot}"
    before = db.lock(Worker.objects.filter(pk=worker_id)).first()
    own_drain = before.drain_requested_at if before else None
    offered = capabilities()
    values = {
        "node_id": node_id,
        "roles": sorted(roles),
        "session_id": str(ids.uuid7()),
        "generation": before.generation + 1 if before else 1,
        "status": "draining" if own_drain or node.drain_requested_at else "online",
        "drain_requested_at": own_drain,
        "version": before.version + 1 if before else 0,
        "capabilities": offered,
        "capabilities_hash": canonical.digest(offered),
        "max_concurrent_runs": slots,
        "available_slots": slots,
        "registered_at": now,
        "last_heartbeat_at": now,
        "lease_expires_at": now + timedelta(milliseconds=WORKER_TTL_MS),
        "updated_at": now,
    }
    worker = Worker.objects.update_or_create(pk=worker_id, defaults=values)[0]
    worker.node = node
    return worker


def open_places(node_id: str, count: int) -> list[int]:
    """Those of the first `count` places of the node that are not drained; none where the whole node is."""
    if Node.objects.filter(pk=node_id, drain_requested_at__isnull=False).exists():
        return []
    drained = Worker.objects.filter(node_id=node_id, drain_requested_at__isnull=False)
    closed = set(drained.values_list("pk", flat=True))
    return [number for number in range(1, count + 1) if f"{node_id}:{number}" not in closed]


@write_transaction
def heartbeat(fence: WorkerFence, available: int, held: Sequence[LeaseFence], ttl_ms: int) -> Renewed | None:
    """Extends the session and all its leases at once; None when the session was replaced.

    Also tells whether it is to take nothing new, because it drains or because its node's clock cannot be trusted.
    """
    now = clock.now()
    row = touch(fence, available, now, alive=True)
    if row is None:
        return None
    held_back = row.status == "draining" or nodes.is_off(db.clock_skew_ms())
    return Renewed(held_back, dict(leases.renew(held, ttl_ms, now)))


class Renewed:
    """What a heartbeat found: whether to take nothing new, and the leases that still stand."""

    def __init__(self, held_back: bool, kept: dict[Any, LeaseFence]) -> None:
        self.held_back = held_back
        self.kept = kept


def touch(fence: WorkerFence, available: int, now: datetime, *, alive: bool = False) -> Worker | None:
    """The session's row with its free slots; None when it was replaced or its lease ran out.

    What is stored of the slots is as old as the last heartbeat: it tells people and placement how busy a worker
    is, while the session itself goes by its leases.
    """
    row = touch_later(fence, available, now, alive=alive)()
    if row is not None and alive:
        Worker.objects.filter(pk=row.pk).update(
            available_slots=available,
            last_heartbeat_at=now,
            lease_expires_at=now + timedelta(milliseconds=WORKER_TTL_MS),
            version=F("version") + 1,
            updated_at=now,
        )
    return row


def touch_later(
    fence: WorkerFence, available: int, now: datetime, *, alive: bool = False
) -> Callable[[], Worker | None]:
    """The row without a write, when it is called for."""
    found = bulk.select_rows_later(
        Worker,
        "id = %s AND session_id = %s AND generation = %s",
        [fence.worker_id, fence.session_id, fence.generation],
        lock=True,
    )

    def read() -> Worker | None:
        rows = found()
        row = rows[0] if rows else None
        if row is None or row.status == "offline" or (not alive and row.lease_expires_at <= now):
            return None
        row.available_slots = available
        return row

    return read


@write_transaction
def leave(fence: WorkerFence) -> None:
    """Ends a session; leases of scripts that still run stay, for the next session of the node to adopt."""
    now = clock.now()
    Worker.objects.filter(
        pk=fence.worker_id, session_id=fence.session_id, generation=fence.generation
    ).update(status="offline", version=F("version") + 1, updated_at=now, lease_expires_at=now)
    if RunDispatchLease.objects.filter(worker_id=fence.worker_id, status="leased").exists():
        wakeups.ring("runs")
