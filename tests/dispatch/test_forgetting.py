"""Workers and nodes that were not seen for as long as histories are kept."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core import clock
from apps.dispatch.models import CompletionReceiptJournal, Node, RunDispatchLease, Worker
from apps.dispatch.services.forgetting import forget_nodes
from tests.runs import kit

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000


def test_what_was_seen_lately_or_is_named_stays(time: Any) -> None:
    gone, drained, named, waits = (letter * 32 for letter in "bcde")
    for node in (gone, drained, waits):
        kit.worker(node=node)
    Node.objects.filter(pk=drained).update(drain_requested_at=clock.now())
    fence = kit.worker(node=named)
    kit.run_of(kit.task())
    (claim,) = kit.take(fence, 1)
    kit.advance(fence, claim.lease)
    kit.finish(fence, claim.lease)
    CompletionReceiptJournal.objects.update(node_id=waits)
    assert RunDispatchLease.objects.filter(worker__node=named).exists()
    time.advance(90 * DAY_MS - 1)
    kit.worker(node="f" * 32)
    assert forget_nodes() == (0, 0)
    time.advance(DAY_MS)
    assert forget_nodes() == (3, 1)
    assert set(Node.objects.values_list("pk", flat=True)) == {drained, named, waits, "f" * 32}
    assert set(Worker.objects.values_list("node_id", flat=True)) == {named, "f" * 32}


def test_one_that_comes_back_registers_anew(time: Any) -> None:
    kit.worker()
    time.advance(91 * DAY_MS)
    assert forget_nodes() == (1, 1)
    assert kit.worker().generation == 1
