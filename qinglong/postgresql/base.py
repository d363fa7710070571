"""PostgreSQL as Django knows it, but a kept connection is looked at before it is used again, not asked.

Django asks `SELECT 1` once per request, which is one of three statements of a small one.
"""

from __future__ import annotations

import select

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """Found by Django under this name."""

    def is_usable(self) -> bool:
        """Whether the connection still stands; asks the server only where something speaks against it.

        A server that went away has closed its end, and that can be read.
        """
        if self.connection is None or self.connection.closed:
            return False
        if self.errors_occurred or _something_to_read(self.connection.fileno()):
            return super().is_usable()
        return True


def _something_to_read(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
