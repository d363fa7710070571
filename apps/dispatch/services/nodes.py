"""Nodes: they show that they are there, and how far their clocks can be trusted (architecture.md §2)."""

from __future__ import annotations

import platform
from datetime import datetime, timedelta

from django.conf import settings

from apps.core import bulk, clock, db
from apps.core.db import write_transaction
from apps.dispatch.models import Node, Worker

LOST_AFTER = timedelta(milliseconds=120_000)
"""A node that was silent for so long is lost: what it had begun may be decided without it (`node_lost_ms`)."""

SKEW_MAX_MS = 5_000
"""A clock that is further off than this is not trusted: leases of 20 s are renewed every 6 s."""


@write_transaction
def meet(node_id: str) -> Node:
    """Puts the calling node on record, seen just now, with what it offers; locked until the transaction ends."""
    now = clock.now()
    offer = {
        "host": platform.node()[:255] or "localhost",
        "labels": dict(sorted(settings.NODE_LABELS.items())),
        "clock_skew_ms": db.clock_skew_ms(),
        "last_heartbeat_at": now,
    }
    # The first sessions of a node begin at the same moment.
    Node.objects.bulk_create([Node(pk=node_id, registered_at=now, **offer)], ignore_conflicts=True)
    node = db.lock(Node.objects.filter(pk=node_id)).get()
    for name, value in offer.items():
        setattr(node, name, value)
    node.save(force_update=True)
    return node


@write_transaction
def beat(node_id: str) -> bool:
    """Shows that a node that was met is there; False for an unknown one.

    Written by hand, as all that an idle cluster does: the ORM's machinery would be most of its memory.
    """
    row = (node_id, clock.now(), db.clock_skew_ms())
    return bool(bulk.update_rows(Node, ["id"], ["last_heartbeat_at", "clock_skew_ms"], [row]))


def is_up(node_id: str, now: datetime) -> bool:
    """Whether the node, or any session of it, showed itself within two minutes."""
    since = now - LOST_AFTER
    return (
        Node.objects.filter(pk=node_id, last_heartbeat_at__gt=since).exists()
        or Worker.objects.filter(node_id=node_id, last_heartbeat_at__gt=since).exists()
    )


def is_off(skew_ms: int) -> bool:
    """Whether a clock is too far from the database's to take runs, or to judge other nodes by it."""
    return abs(skew_ms) > SKEW_MAX_MS
