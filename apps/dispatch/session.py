"""A dispatch session: two thin entry points, one loop (architecture.md §2)."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from django.conf import settings
from django_q.conf import Conf

from apps.core import db, node
from apps.core.node import NoFreeSlot
from apps.dispatch import drain
from apps.dispatch.launcher import tree
from apps.dispatch.loop import IDLE_S, MAX_AGE_S, Loop
from apps.dispatch.services import workers
from apps.dispatch.source import RunSource
from apps.dispatch.supervisor import process

CLUSTER = "runs"
YOUNG = 10_000  # objects between two looks for garbage: some passes' worth

logger = logging.getLogger("qinglong.dispatch")


def run_queued() -> str:
    """A session for a message of the queue: ends when idle, after ten minutes, or when its cluster drains.

    A signal ends the process too, once the session has let go: django-q2's worker does not see its cluster die
    and would wait for ever, holding what it inherited.
    """
    if drain.requested():
        # A message that the cluster still took while it ends: the next cluster rings anew for what it stood for.
        return "drained"
    db.plan_by_index()
    # One place for each process of the cluster: a drained one is missed, not made up for by a place beyond.
    places = workers.open_places(node.node_id(), Conf.WORKERS)
    try:
        return _run(idle_s=IDLE_S, max_age_s=MAX_AGE_S, die_of_signal=True, places=places)
    except NoFreeSlot:
        return "full"


def run_resident() -> str:
    """A session without a queue in the path: ends when drained only."""
    db.plan_by_index()
    # What is loaded stays; a full look at it would hold up the news of all scripts for a tenth of a second. Once in a
    # process, for what is garbage now stays as well; a queued session's process was frozen before it was forked.
    gc.freeze()
    return _run(idle_s=None, max_age_s=None)


def _run(
    *,
    idle_s: float | None,
    max_age_s: float | None,
    die_of_signal: bool = False,
    places: Sequence[int] = (),
) -> str:
    loop = Loop(
        CLUSTER,
        [RunSource()],
        slots=settings.SLOTS,
        idle_s=idle_s,
        max_age_s=max_age_s,
        drain=drain.descriptor(),
        places=places,
    )
    process.protect()
    tree.become_batch()
    gc.set_threshold(YOUNG)
    with _drained_by_signal(loop) as signals:
        reason = loop.run()
    logger.info("session ended: %s", reason)
    if die_of_signal and signals:
        signal.raise_signal(signals[0])
    return reason


@contextmanager
def _drained_by_signal(loop: Loop) -> Iterator[list[int]]:
    # A handler that only set a flag would be seen when the loop wakes by itself, seconds later.
    wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    loop.watch(wake, loop.request_drain)

    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        os.eventfd_write(wake, 1)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake)
