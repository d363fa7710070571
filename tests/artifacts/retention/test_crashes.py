"""A process killed at each point of a removal, and two that remove at the same time (§11)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from apps.artifacts import facts
from apps.artifacts.models import ArtifactRetention, RetentionReceipt, StoredTotal
from apps.artifacts.retention import files, history, records, sweep
from apps.core import clock
from apps.runs.models import RunAttempt, RunEvent, RunSummary
from apps.runs.services import folding
from tests.artifacts.kit import publish
from tests.artifacts.retention import kit
from tests.artifacts.retention.kit import DAY, OPTIONS
from tests.runs.kit import race
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db(transaction=True)

DAY_MS = 86_400_000
_kept: list[Any] = []


@pytest.fixture(autouse=True)
def _rule(seeded: None, root: Path, settings: Any) -> None:
    kit.keep(settings, keep_ms=7 * DAY_MS, pressure_ms=DAY_MS, keep_least=0, history_ms=90 * DAY_MS)


def _killed(work: Callable[[], Any]) -> None:
    """Runs `work` in a process of its own, which has to be killed in the middle of it."""
    pid = os.fork()
    if pid == 0:
        try:
            # The parent's connections stay open and unused: to close one would end it for the parent too.
            _kept.extend(one.connection for one in connections.all())
            for one in connections.all():
                one.connection = None
            work()
        finally:
            os._exit(1)
    _pid, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _die(*_args: Any, **_options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _after(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        return _die()

    return call


@pytest.mark.parametrize(
    ("where", "name", "outcome", "size"),
    [
        (files, "look", "deleted", 100),
        (os, "unlink", "already_absent", 0),
        (facts, "sync_directory", "already_absent", 0),
        (sweep, "_record", "already_absent", 0),  # killed before it
        (records, "bill", "already_absent", 0),
    ],
)
def test_killed_at_every_step(
    monkeypatch: pytest.MonkeyPatch, root: Path, where: Any, name: str, outcome: str, size: int
) -> None:
    """Behind each step: what was begun is ended by the next sweep, and recorded once."""
    of = kit.ended(clock.now() - 8 * DAY, status="failed", content=b"x" * 100)
    publish(of, False)
    kit.listed(of)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, _die if name == "_record" else _after(getattr(where, name)))
        _killed(lambda: sweep.cycle(OPTIONS))
    assert not ArtifactRetention.objects.exists() and not RetentionReceipt.objects.exists()
    swept = sweep.cycle(OPTIONS).swept
    (entry,) = swept.entries
    assert not kit.log(of).exists() and facts.read_fact(str(root), str(of.log_artifact_id)) is None
    row = ArtifactRetention.objects.get()
    # A fact that explained a log which is gone is no log.
    assert (entry.outcome, row.disposition, row.bytes_reclaimed) == (outcome, outcome, size)
    assert RetentionReceipt.objects.get().items == 1 and StoredTotal.objects.get().logs == 0
    assert sweep.cycle(OPTIONS).swept.entries == []


def test_killed_before_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kit.many(12, clock.now() - 8 * DAY)
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "compare_and_set", _die)
        _killed(lambda: sweep.cycle(OPTIONS))
    assert ArtifactRetention.objects.count() == 8 and sweep.load().version == 0
    assert sweep.cycle(OPTIONS).swept.attempted == 4
    assert kit.on_disk(made) == []


@pytest.mark.parametrize("model", ["RunSummary", "RunEvent"])
def test_killed_in_a_fold(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """A history is whole, or a summary: a kill in between leaves it whole."""
    of = kit.ended(clock.now() - 100 * DAY, status="failed", content=None)
    RunAttempt.objects.filter(pk=of.pk).update(log_artifact_id=None)
    RunEvent.objects.create(
        run=of.run, sequence=1, type="run.created", actor_type="system", created_at=of.run.created_at
    )
    with monkeypatch.context() as patch:
        if model == "RunSummary":
            patch.setattr(folding, "_summary", _die)
        else:
            patch.setattr(history.records, "bill", _die)
        _killed(history.fold)
    assert not RunSummary.objects.exists() and RunEvent.objects.count() == 1
    assert history.fold()[1] == 1
    assert RunSummary.objects.count() == 1 and not RunEvent.objects.exists()


def test_two_sweepers_at_once() -> None:
    """Both may remove the same files; there is one tombstone of each, one bill, and one moves the checkpoint."""
    task = make()
    made = kit.many(8, clock.now() - 8 * DAY, task=task, content=b"x" * 10)
    kit.many(4, clock.now() - 8 * DAY, task=task)
    before = sweep.load()
    results = race([lambda: sweep.cycle(OPTIONS, before) for _ in range(2)])
    assert sorted(found.action for found in results) == ["advanced", "fenced"], results
    assert sweep.load().version == 1
    while sweep.cycle(OPTIONS).swept.status != "complete":
        pass
    assert kit.on_disk(made) == []
    assert ArtifactRetention.objects.count() == 12
    assert StoredTotal.objects.get().logs == 0
    assert RetentionReceipt.objects.get().items == 12


def test_a_reader_and_a_sweep() -> None:
    """A log that is being served is served to its end, though its name is gone."""
    from apps.artifacts import services
    from apps.artifacts.errors import LogRetained
    from tests.artifacts.kit import GRANT

    of = kit.ended(clock.now() - 8 * DAY, status="failed", content=b"x" * 1000)
    kit.listed(of)
    stream = services.stream_log(GRANT, of.run_id)
    sweep.cycle(OPTIONS)
    assert stream.content is not None and b"".join(stream.content) == b"x" * 1000
    with pytest.raises(LogRetained):
        services.read_log(GRANT, of.run_id)
