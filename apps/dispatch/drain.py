"""How a session learns that its cluster is to stop: an eventfd that every process of the cluster inherits.

django-q2 gives its workers no signal at stop. The descriptor is made before q2 forks, written once by the
signal handler of the cluster's main process, and polled, never read, by whoever wants to know.
"""

from __future__ import annotations

import os
import select

_descriptor: int | None = None


def prepare() -> int:
    """Makes the descriptor; called once per cluster or worker process, before it forks."""
    global _descriptor
    if _descriptor is not None:
        os.close(_descriptor)
    _descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    return _descriptor


def request() -> None:
    """Asks every process that shares the descriptor to drain; safe in a signal handler, and to repeat."""
    if _descriptor is not None:
        os.eventfd_write(_descriptor, 1)


def requested() -> bool:
    """Whether draining was asked for."""
    return _descriptor is not None and bool(select.select([_descriptor], [], [], 0)[0])


def descriptor() -> int | None:
    """Readable from the moment draining is asked for; None where nobody prepared it."""
    return _descriptor
