"""Runs that need labels go to workers that have them, and cost nobody else anything (api.md, "Task")."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import clock
from apps.dispatch import candidates
from apps.dispatch.candidates import Needs
from apps.dispatch.fence import WorkerFence
from apps.dispatch.models import Worker
from apps.dispatch.queries import oldest_undispatched, waiting_for
from apps.dispatch.services import expiry, passes
from apps.dispatch.services.passes import News
from apps.runs.models import Run
from apps.tasks.models import Task
from tests.runs import kit

pytestmark = pytest.mark.django_db


def need(**labels: str) -> Task:
    return kit.task(
        "-".join(labels.values()), requires={"labels": labels}, concurrency="parallel", max_parallel=64
    )


@pytest.fixture
def labelled(settings: Any) -> WorkerFence:
    """A worker with a graphics card in Europe."""
    settings.NODE_LABELS = {"gpu": "a100", "zone": "eu"}
    fence = kit.worker(1, slots=64, node="b" * 32)
    settings.NODE_LABELS = {}
    return fence


def take(fence: WorkerFence, needs: Needs, room: int = 64) -> tuple[set[UUID], bool]:
    stored = passes.store(fence, News(room=room, slots=room, needs=needs), kit.TTL_MS)
    return {claimed.run.pk for claimed in stored.claimed}, stored.more


def offered() -> Needs:
    return Needs({"gpu": "a100", "zone": "eu"})


def test_only_a_worker_with_all_the_labels_takes_a_run(labelled: WorkerFence) -> None:
    gpu, both = kit.run_of(need(gpu="a100")), kit.run_of(need(gpu="a100", zone="eu"))
    other, plain = kit.run_of(need(gpu="h100")), kit.run_of(kit.task())
    assert take(kit.worker(1, slots=64), Needs({})) == ({plain.pk}, False)
    needs = offered()
    # The first look brings up what is needed, and asks for another one at once.
    assert take(labelled, needs) == (set(), True)
    assert take(labelled, needs) == ({gpu.pk, both.pk}, False)
    assert take(labelled, needs) == (set(), False) and kit.fresh(other).status == "queued"


def test_the_order_is_one_for_those_with_and_without_a_need(labelled: WorkerFence) -> None:
    low, high = kit.run_of(kit.task("a"), priority=1), kit.run_of(need(gpu="a100"), priority=5)
    needs = offered()
    needs.look_later()()
    assert candidates.take(clock.now(), 64, needs.fitting) == [high.pk, low.pk]
    assert candidates.take(clock.now(), 1, needs.fitting) == [high.pk]


def test_a_claim_that_was_given_back_goes_to_a_worker_that_fits_too(labelled: WorkerFence) -> None:
    run = kit.run_of(need(zone="eu"))
    lease = kit.claimed(labelled, run)
    kit.expire_now(lease)
    assert expiry.expire(lease.attempt_id) == "unstarted_released"
    assert take(kit.worker(2, slots=64), Needs({}))[0] == set()
    needs = offered()
    assert take(labelled, needs) == (set(), True)
    assert take(labelled, needs)[0] == {run.pk}


def test_a_claim_itself_asks_for_the_labels(labelled: WorkerFence) -> None:
    run = kit.run_of(need(gpu="a100"))
    assert kit.claim(kit.worker(), run).result == "worker_unavailable"
    assert kit.claim(labelled, run).result == "claimed"


def test_more_needs_than_are_asked_at_once_take_turns(labelled: WorkerFence, monkeypatch: Any) -> None:
    monkeypatch.setattr(candidates, "MAX_NEEDS", 2)
    runs = {
        kit.run_of(need(**wanted)).pk
        for wanted in ({"gpu": "a100"}, {"zone": "eu"}, {"gpu": "a100", "zone": "eu"})
    }
    needs, taken = offered(), set[UUID]()
    rounds = [take(labelled, needs) for _ in range(64)]
    for found, _more in rounds:
        taken |= found
    assert taken == runs
    assert [more for _found, more in rounds].count(True) == 1, "it must not look again and again"


def test_a_worker_without_labels_asks_what_it_asked_before_there_were_any() -> None:
    kit.run_of(need(gpu="a100"))
    with CaptureQueriesContext(connection) as found:
        candidates.take(clock.now(), 8)
        assert Needs({}).look_later()() is False
    assert len(found) == 2


def looked_at(sql: str, params: list[Any]) -> list[tuple[str, int]]:
    """How each part of a query reads runs, and how many rows it looked at (SQLite does not tell: 0)."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            told = [row[3] for row in cursor.fetchall()]
            assert not any("ORDER BY" in line for line in told), told
            return [(line, 0) for line in told if line.startswith(("SCAN r", "SEARCH r"))]
        cursor.execute("ANALYZE runs")
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
        (found,) = cursor.fetchone()
    waiting, read = [found[0]["Plan"]], []
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", [])
        if node.get("Relation Name") == "runs":
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            read.append((f"{node['Node Type']} {node.get('Index Name')}", rows * node["Actual Loops"]))
    return read


def test_thousands_that_fit_nowhere_are_not_looked_at(labelled: WorkerFence) -> None:
    blocked = kit.run_of(need(gpu="h100"), priority=9)
    copies = []
    for _ in range(1_500):
        copy = kit.fresh(blocked)
        copy.pk, copy.idempotency_key = Run._meta.pk.get_default(), None
        copies.append(copy)
    Run.objects.bulk_create(copies)
    mine = kit.run_of(need(gpu="a100"))
    key = mine.requires
    for sql, params in (
        (candidates._QUEUED, [8]),
        (candidates._QUEUED_NEEDING, [key, 8]),
        (candidates._NEEDS, []),
    ):
        for how, rows in looked_at(sql, params):
            assert "SEARCH r USING" in how or "Index" in how, how
            assert "run_candidates" in how or "run_reclaimable" in how, how
            assert rows <= 8, (how, rows)
    assert candidates.take(clock.now(), 8) == []
    assert candidates.take(clock.now(), 8, [key]) == [mine.pk]


def test_it_says_that_nobody_has_the_labels(labelled: WorkerFence) -> None:
    fits, fits_nowhere, plain = (
        kit.run_of(need(gpu="a100")),
        kit.run_of(need(gpu="h100")),
        kit.run_of(kit.task()),
    )
    assert waiting_for([fits, fits_nowhere, plain]) == {fits_nowhere.pk: "labels"}
    kit.worker(2)
    Worker.objects.filter(pk=labelled.worker_id).update(available_slots=0)
    assert waiting_for([fits, fits_nowhere, plain]) == {fits.pk: "priority", fits_nowhere.pk: "labels"}
    Worker.objects.update(status="offline")
    assert waiting_for([fits_nowhere]) == {fits_nowhere.pk: "worker"}


def test_a_need_that_nobody_has_is_no_trouble_of_dispatch(time: Any) -> None:
    kit.run_of(need(gpu="h100"))
    time.advance(3_600_000)
    assert oldest_undispatched() is None
