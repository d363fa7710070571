"""What happens between a look and a removal: pins that come late, and a second sweeper (lessons D23)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.db import connection

from apps.artifacts import store
from apps.artifacts.models import ArtifactRetention
from apps.artifacts.retention import candidates, files, history, limits, listing, preview, rules, sweep
from apps.artifacts.retention.rules import Limits
from apps.core import clock, db
from apps.core.db import write_transaction
from apps.core.models import Wakeup
from apps.projects.policy import Grant
from apps.runs.models import RunAttempt, RunEvent, RunSummary
from apps.runs.services import folding, holds
from apps.tasks.models import Task
from apps.tasks.services import update_task
from tests.artifacts.retention import kit
from tests.artifacts.retention.kit import DAY, OPTIONS
from tests.runs.kit import race
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000
GRANT = Grant.system("default", "project.manage", "tests")


@pytest.fixture(autouse=True)
def _rule(root: Path, settings: Any) -> None:
    kit.keep(settings, keep_ms=7 * DAY_MS, pressure_ms=DAY_MS, keep_least=0, history_ms=90 * DAY_MS)


@pytest.mark.parametrize("way", ["run", "task"])
def test_what_is_pinned_while_a_page_is_under_way_stays(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    made = kit.many(1, clock.now() - 9 * DAY)
    pinned = kit.many(1, clock.now() - 8 * DAY)[0]
    hold = candidates.hold
    turns = 0

    def late(*args: Any) -> Any:
        nonlocal turns
        turns += 1
        if turns == 2:
            _pin(pinned, way)
        return hold(*args)

    monkeypatch.setattr(sweep, "LOCKED", 1)
    monkeypatch.setattr(candidates, "hold", late)
    swept = sweep.cycle(OPTIONS).swept
    assert turns == 2 and kit.on_disk([*made, pinned]) == [pinned]
    assert not ArtifactRetention.objects.filter(attempt=pinned).exists()
    assert [entry.outcome for entry in swept.entries] == ["deleted"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["run", "task"])
def test_nobody_can_pin_what_is_being_removed(
    seeded: None, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """On real connections: a pin that comes meanwhile waits, and then stands beside a log that was gone before it."""
    of = kit.many(1, clock.now() - 8 * DAY)[0]
    retire = files.retire
    waited: list[bool] = []

    def pin() -> None:
        try:
            _pin(of, way)
        finally:
            connection.close()

    pinning = Thread(target=pin)

    def slow(artifact_id: str, **options: Any) -> Any:
        pinning.start()
        pinning.join(0.5)
        waited.append(pinning.is_alive())
        return retire(artifact_id, **options)

    monkeypatch.setattr(files, "retire", slow)
    swept = sweep.cycle(OPTIONS).swept
    pinning.join()
    assert waited == [True] and [entry.outcome for entry in swept.entries] == ["deleted"]
    of.run.task.refresh_from_db()
    assert of.run.task.pinned if way == "task" else holds.held([of.run_id])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["run", "task"])
def test_a_pin_between_the_judgement_and_the_removal_comes_before_it(
    seeded: None, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """SQLite judges without its writer: a pin that comes then has the whole judged again."""
    if connection.vendor != "sqlite":
        pytest.skip("on PostgreSQL the judgement holds the rows: the pin waits, as above")
    of, other = kit.many(2, clock.now() - 8 * DAY)
    take, pins = db.take_writer, [of]

    def late() -> None:
        if pins:
            assert race([partial(_pin, pins.pop(), way)]) == [None]
        take()

    monkeypatch.setattr(db, "take_writer", late)
    swept = sweep.cycle(OPTIONS).swept
    assert kit.on_disk([of, other]) == ([of] if way == "run" else [of, other])
    assert [entry.attempt_id for entry in swept.entries] == ([other.pk] if way == "run" else [])


def test_a_slow_disk_gives_the_locks_back_behind_each_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kit.many(6, clock.now() - 8 * DAY)
    hold, groups = candidates.hold, []

    def seen(group: Any, *args: Any) -> Any:
        groups.append(len(group))
        return hold(group, *args)

    monkeypatch.setattr(candidates, "hold", seen)
    monkeypatch.setattr(sweep, "spent", lambda: True)
    swept = sweep.cycle(OPTIONS).swept
    assert groups[0] == 6 and len(groups) == 6 and kit.on_disk(made) == []
    assert [entry.outcome for entry in swept.entries] == ["deleted"] * 6


@pytest.mark.django_db(transaction=True)
def test_starts_do_not_wait_for_a_history_that_is_being_judged(
    seeded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes meanwhile is done before the fold goes on; it folds once all the same."""
    of = kit.ended(clock.now() - 100 * DAY, status="failed", content=None)
    RunAttempt.objects.filter(pk=of.pk).update(log_artifact_id=None)
    RunEvent.objects.create(
        run=of.run, sequence=1, type="run.created", actor_type="system", created_at=of.run.created_at
    )
    summary, tries = folding._summary, []

    def start() -> None:
        Wakeup.objects.create(cluster="start", rung_at=clock.now())

    def late(*args: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            assert race([write_transaction(start)]) == [None]
        return summary(*args)

    monkeypatch.setattr(folding, "_summary", late)
    assert history.fold()[1] == 1
    assert len(tries) == (2 if connection.vendor == "sqlite" else 1)
    assert RunSummary.objects.count() == 1 and not RunEvent.objects.exists()


def _pin(of: RunAttempt, way: str) -> None:
    grant = Grant.system("default", "task.update", "tests")
    if way == "run":
        holds.pin_run(grant, of.run_id)
    else:
        task = Task.objects.get(pk=of.run.task_id)
        update_task(grant, task.pk, task.version, {"pinned": True})


def test_a_second_sweeper_takes_no_second_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit are four, whoever removes them: not four for each that looked before the other removed."""
    task = make()
    made = kit.many(10, clock.now(), task=task)
    rules.change(GRANT, 0, Limits(keep_most=6), task.pk)
    chunks = candidates.chunks

    def late(*args: Any) -> Any:
        monkeypatch.setattr(candidates, "chunks", chunks)
        limits.enforce(8)
        return chunks(*args)

    monkeypatch.setattr(candidates, "chunks", late)
    limits.enforce(8)
    assert kit.on_disk(made) == made[4:]
    assert listing.usage("default", task.pk).logs == 6


def test_a_preview_knows_that_the_disk_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    kit.many(3, clock.now() - 2 * DAY)
    assert preview.preview(GRANT).logs == 0
    monkeypatch.setattr(store, "capacity", lambda: store.Capacity(store.minimum_free() - 1, 1 << 60))
    found = preview.preview(GRANT)
    assert found.by_rule == {"pressure": 3}
    swept = sweep.cycle().swept
    assert swept.pressure and found.logs == sum(entry.outcome == "deleted" for entry in swept.entries)
