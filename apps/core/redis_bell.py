"""django-q2's Redis broker, asking like the doorbell whether its own cluster is to work without a message."""

from __future__ import annotations

from typing import Any

from django.db import close_old_connections
from django_q.brokers.redis_broker import Redis
from django_q.conf import Conf

from apps.core.doorbell import Doorbell, own_message


class RedisBell(Redis):  # type: ignore[misc]
    """Loaded only where messages come by Redis; its waits are the server's."""

    def dequeue(self) -> list[tuple[None, Any]] | None:
        """Takes one waiting message; returns None after a second without one."""
        if super().dequeue():
            return own_message(Conf.CLUSTER_NAME)
        close_old_connections()
        watcher = Doorbell.watcher
        return own_message(Conf.CLUSTER_NAME) if watcher is not None and watcher.look() else None
