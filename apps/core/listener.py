"""The other end of a ring: something a loop can wait on (architecture.md §2)."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import psycopg
from django.db import connection

from apps.core import db, ids, wakeups


class Listener:
    """Readable when its cluster was rung: a notification on PostgreSQL, a datagram of this node on SQLite."""

    def __init__(self, cluster: str) -> None:
        self._connection: psycopg.Connection[Any] | None = None
        self._socket: socket.socket | None = None
        if db.is_postgresql():
            self._connection = _listen(cluster)
        else:
            self._socket = wakeups.listen(cluster, f"loop-{ids.token(6)}")

    def fileno(self) -> int:
        source = self._connection or self._socket
        assert source is not None
        return source.fileno()

    def drain(self) -> None:
        """Takes what arrived; raises OSError or psycopg.OperationalError when the way is broken."""
        if self._connection is not None:
            for _notification in self._connection.notifies(timeout=0):
                pass
        elif self._socket is not None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(16)

    def close(self) -> None:
        """Stops listening."""
        if self._connection is not None:
            self._connection.close()
        if self._socket is not None:
            self._socket.close()


def _listen(cluster: str) -> psycopg.Connection[Any]:
    settings = connection.get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold"):
        settings.pop(name, None)
    listening = psycopg.connect(**settings, autocommit=True)
    listening.execute(f'LISTEN "{wakeups.channel(cluster)}"')
    return listening
