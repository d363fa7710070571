"""django-q2's database broker, woken instead of polling.

The stock broker asks the database every `poll` seconds, which is slow to react and never idle. This one sleeps
until a ring reaches it the way rings reach live sessions (`wakeups`): a notification on PostgreSQL, a datagram
on SQLite. `poll` remains as the net below.

A message is deleted as it is taken, unread. It carries no data, the sweep rings again when nobody answers, and a
message that waits locked behind a killed worker would help nobody; so nothing is left to acknowledge, and the
process that monitors results never needs the database.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from django.db import OperationalError, close_old_connections, connections
from django_q.brokers import Broker
from django_q.brokers.orm import ORM
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.tasks import async_task

from apps.core import db, wakeups

# Rings come with every run that is queued, messages at most every 20 s: a bell that brought nothing is not
# answered again for this long, or a busy installation would ask the empty table hundreds of times a second.
PAUSE_S = 0.2

_TABLE = OrmQ._meta.db_table

logger = logging.getLogger("qinglong.doorbell")


class Watcher(Protocol):
    """Looks after one cluster's own part of the world."""

    def look(self) -> bool:
        """Whether there is something that no message may bring."""


class Doorbell(ORM):  # type: ignore[misc]
    """One per pusher process; elsewhere it only enqueues and acknowledges."""

    stop: ClassVar[int | None] = None
    """A descriptor that is readable once the cluster stops, so that the pusher need not sleep to the end."""

    watcher: ClassVar[Watcher | None] = None
    """Who knows whether this cluster is to work though no message came: asked after every wait."""

    _bell: _Bell | None = None

    @staticmethod
    def get_connection(list_key: str | None = None) -> Any:
        """The rows of the queue; unlike the stock broker's, no new connection for each question."""
        return OrmQ.objects.using(Conf.ORM)

    def acknowledge(self, task_id: object) -> None:
        """Nothing: see above."""

    delete = fail = acknowledge

    def dequeue(self) -> list[tuple[None, str]] | None:
        """Takes one waiting message; without one, returns None after the next ring or `poll` seconds.

        A database that is away for a while is waited for: django-q2 would sleep 10 s and replace the process.
        """
        try:
            close_old_connections()
            return self._next()
        except OperationalError as error:
            logger.warning("cluster %s cannot read its queue: %s", self.list_key, type(error).__name__)
            time.sleep(1)
            return None

    def _next(self) -> list[tuple[None, str]] | None:
        if self._bell is None:
            self._bell = _Bell(self.list_key, self.stop)
        self._bell.listen()
        if found := self._take():
            return found
        if self._bell.wait(Conf.POLL):
            if found := self._take():
                return found
            time.sleep(PAUSE_S)
        return own_message(self.list_key) if self.watcher is not None and self.watcher.look() else None

    def _take(self) -> list[tuple[None, str]]:
        # By hand, because the ORM's machinery would be the larger part of this process's own memory. Looking
        # comes before deleting: an idle installation must not ask for the write lock.
        if (waiting := self.peek()) is None:
            return []
        with connections[Conf.ORM].cursor() as cursor:
            cursor.execute(f"DELETE FROM {_TABLE} WHERE id = %s", [waiting])
            return own_message(self.list_key) if cursor.rowcount else []

    def peek(self) -> int | None:
        """The id of the message that would be taken next."""
        with connections[Conf.ORM].cursor() as cursor:
            cursor.execute(f"SELECT id FROM {_TABLE} WHERE key = %s ORDER BY id LIMIT 1", [self.list_key])
            row = cursor.fetchone()
        return None if row is None else int(row[0])


def own_message(cluster: str) -> list[tuple[None, str]]:
    """A message as a ring sends it, made here.

    What lies in the queue is never read: it says no more than that somebody rang, it may be signed by another node
    with another key, and whoever could write there could name any function.
    """
    return [(None, _message(cluster, wakeups.function_of(cluster)))]


@lru_cache(maxsize=8)
def _message(cluster: str, function: str) -> str:
    """The same one each time: it carries nothing, and nobody keeps its result."""
    caught = _Caught(cluster)
    async_task(function, broker=caught)
    (message,) = caught.messages
    return message


class _Caught(Broker):  # type: ignore[misc]
    """Where a message goes that is not to be sent."""

    def __init__(self, list_key: str) -> None:
        super().__init__(list_key)
        self.messages: list[str] = []

    def enqueue(self, task: str) -> None:
        self.messages.append(task)


class _Bell:
    def __init__(self, cluster: str, stop: int | None) -> None:
        self._cluster = cluster
        self._stop = [] if stop is None else [stop]
        self._rung = False
        self._heard_on: Any = None
        self._socket: socket.socket | None = None

    def listen(self) -> None:
        """Before the queue is read, so that nothing slips in between; again after a reconnect."""
        if db.is_postgresql():
            connection = connections[Conf.ORM]
            connection.ensure_connection()
            if connection.connection is not self._heard_on:
                self._heard_on = connection.connection
                self._heard_on.add_notify_handler(self._hear)
                with connection.cursor() as cursor:
                    cursor.execute(f'LISTEN "{wakeups.channel(self._cluster)}"')
        elif self._socket is None:
            self._socket = wakeups.listen(self._cluster, f"bell-{os.getpid()}")

    def wait(self, seconds: float) -> bool:
        """Whether the bell rang within `seconds`."""
        source = self._heard_on if self._socket is None else self._socket
        if not self._rung and source not in select.select([source, *self._stop], [], [], seconds)[0]:
            return False
        self._rung = False
        if self._socket is not None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(16)
        return True

    def _hear(self, _: object) -> None:
        self._rung = True
