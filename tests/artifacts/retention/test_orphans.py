"""Files that no attempt names: written down first, removed when seen twice, never what somebody names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import jobs
from apps.artifacts.models import Orphan, RetentionReceipt
from apps.artifacts.retention import orphans, sweep
from apps.core import clock
from tests.artifacts.retention import kit
from tests.artifacts.retention.kit import DAY, OPTIONS

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000


def _stray(root: Path, digits: str = "ab", age_days: float = 2, content: bytes = b"stray") -> Path:
    name = f"local-{digits}{'0' * 28}"
    path = root / digits / f"{name}.log"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(content)
    at = clock.now_ms() / 1000 - age_days * 86_400
    os.utime(path, (at, at))
    return path


def _age(*paths: Path, days: float = 2) -> None:
    at = clock.now_ms() / 1000 - days * 86_400
    for path in paths:
        os.utime(path, (at, at))


def test_an_orphan_is_written_down_and_goes_a_day_later(root: Path, time: Any) -> None:
    path = _stray(root)
    first = orphans.sweep()
    assert (first.unknown, first.removed, first.after) == (1, 0, None) and path.exists()
    assert orphans.waiting() == (1, 5)
    time.advance(DAY_MS - 1)
    assert orphans.sweep().removed == 0 and path.exists()
    time.advance(1)
    second = orphans.sweep()
    assert (second.removed, second.bytes) == (1, 5) and not path.exists()
    assert not Orphan.objects.exists()
    receipt = RetentionReceipt.objects.get()
    assert (receipt.project_id, receipt.rule, receipt.items, receipt.bytes) == ("", "orphan", 1, 5)


def test_a_dry_run_writes_and_removes_nothing(root: Path, time: Any) -> None:
    path = _stray(root)
    for _ in range(2):
        found = orphans.sweep(dry_run=True)
        assert found.unknown == 1 and found.examples == [path.name.removesuffix(".log")]
        time.advance(2 * DAY_MS)
    assert path.exists() and not Orphan.objects.exists()


def test_what_somebody_names_is_no_orphan(root: Path, time: Any) -> None:
    running = kit.ended(clock.now(), status="running")
    lost = kit.ended(clock.now(), status="lost", attempt_status="lost")
    listed = kit.ended(clock.now(), status="failed")
    unlisted = kit.ended(clock.now(), status="failed")
    kit.listed(listed)
    _age(*(kit.log(one) for one in (running, lost, listed, unlisted)))
    for _ in range(2):
        assert orphans.sweep().unknown == 0
        time.advance(2 * DAY_MS)
    assert len(kit.on_disk([running, lost, listed, unlisted])) == 4


def test_a_young_file_or_one_that_is_written_to_is_left_alone(root: Path, time: Any) -> None:
    path = _stray(root, age_days=0.5)
    assert orphans.sweep().unknown == 0
    _age(path)
    assert orphans.sweep().unknown == 1
    time.advance(DAY_MS + 1)
    _age(path, days=1.5)
    # Touched since it was written down: the day begins anew.
    assert orphans.sweep().removed == 0 and path.exists()


def test_files_that_came_back_after_their_removal(root: Path, time: Any, settings: Any) -> None:
    kit.keep(settings, keep_ms=7 * DAY_MS, pressure_ms=DAY_MS, keep_least=0)
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    kit.listed(of)
    sweep.cycle(OPTIONS)
    kit.log(of).write_bytes(b"back")
    _age(kit.log(of))
    assert orphans.sweep().unknown == 1


def test_strange_things_are_counted_and_left(root: Path) -> None:
    path = _stray(root)
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / f"local-cd{'0' * 28}.log").write_text("in the wrong shard")
    (path.parent / f"local-ab{'1' * 28}.log").symlink_to("/etc/passwd")
    (root / "lost+found").mkdir()
    found = orphans.sweep()
    assert (found.unknown, found.strange) == (1, 3)


def test_a_round_goes_shard_by_shard(root: Path, time: Any) -> None:
    for digits in ("00", "7f", "ff"):
        _stray(root, digits)
    first = orphans.sweep(names=1)
    assert (first.names, first.after) == (1, "00")
    assert orphans.sweep("7f", names=1).after == "ff"
    assert orphans.sweep("ff").after is None
    assert jobs.sweep_orphans({})["last"]["unknown"] == 3


def test_an_orphan_that_vanished_is_struck_out(root: Path, time: Any) -> None:
    path = _stray(root)
    other = _stray(root, "cd")
    orphans.sweep()
    path.unlink()
    _stray(root, "ab", age_days=0)
    orphans.sweep()
    assert set(Orphan.objects.values_list("pk", flat=True)) == {other.name.removesuffix(".log")}
