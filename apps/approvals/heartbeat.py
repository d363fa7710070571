"""Keeps the lease of an execution alive while its handler runs, on a connection of its own."""

from __future__ import annotations

import threading
from types import TracebackType

from django.db import connection

from apps.approvals.contract import Held, holding
from apps.approvals.services import execution
from apps.core import clock
from apps.core.errors import DomainError


class Heartbeat:
    """For a `with` block; `held` is what the holder knows after the last renewal.

    A renewal that is refused ends it: somebody else closed the execution, and the end of the handler will be told
    so. One that fails is tried again with the next beat.
    """

    def __init__(self, held: Held, lease_ms: int) -> None:
        self.held = held
        self._lease_ms = lease_ms
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="approvals-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._over.wait(self._lease_ms / 3000):
                try:
                    found = execution.renew(self.held, clock.now(), self._lease_ms)
                except DomainError as error:
                    if error.status != 503:
                        return
                else:
                    self.held = holding(found.execution)
        finally:
            connection.close()
