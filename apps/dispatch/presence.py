"""What a cluster of a node does for its own node: it shows that the node is there, and opens the sessions that no
ring may bring (architecture.md §2).

A ring's message reaches one cluster of all, and that may be one of a node that drains, or that has not the labels a
run needs. So each cluster looks for itself whether something waits for a session of its node.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from django.conf import settings

from apps.core import bulk, clock, db, node
from apps.core.errors import DomainError
from apps.dispatch import candidates
from apps.dispatch.services import adoption, escaped, nodes, workers

BEAT_S = 20.0
# A session asked for is there by then, or something is wrong with it.
PATIENCE_S = 5.0
# What any node can take is left to the one that the ring reached, for so long.
FIRST_CALL = timedelta(seconds=1)
# Whether there is anything to look at; by hand, because an idle cluster asks it all the time, and the ORM's machinery
# would be most of its memory.
_OPEN = (
    "SELECT 1 FROM run_dispatch_leases WHERE status = 'leased'"
    " AND worker_id IN (SELECT id FROM workers WHERE node_id = %s)"
    " UNION ALL SELECT 1 FROM run_escaped_processes WHERE done_at IS NULL LIMIT 1"
)

logger = logging.getLogger("qinglong.cluster")


class Presence:
    """One per cluster; `workers` is how many sessions it opens at most."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._node_id = node.node_id()
        self._needs = candidates.Needs(settings.NODE_LABELS)
        self._beat_at = 0.0
        self._look_at = 0.0

    def look(self) -> bool:
        """Whether a session is to be opened here; called every few seconds, and when the cluster was rung."""
        now = time.monotonic()
        try:
            if now >= self._beat_at:
                self._beat_at = now + BEAT_S
                if not nodes.beat(self._node_id):
                    nodes.meet(self._node_id)
            if now < self._look_at or node.held_slots() or not self._wanted():
                return False
        except DomainError as error:
            logger.warning("this node cannot look after itself: %s", error.code)
            return False
        self._look_at = now + PATIENCE_S
        return True

    def _wanted(self) -> bool:
        if bulk.select_values_later(_OPEN, [self._node_id])() and (
            adoption.orphaned(self._node_id, []) or escaped.waiting(self._node_id)
        ):
            return True
        self._needs.look_later()()
        return (
            candidates.waiting(self._needs.fitting, clock.now() - FIRST_CALL)
            and bool(workers.open_places(self._node_id, self._count))
            and not nodes.is_off(db.clock_skew_ms())
        )
