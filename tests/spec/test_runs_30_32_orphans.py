"""spec/runs.md §19, scenarios 30 and 32: the journal of receipts, and files that nobody waits for."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from apps.artifacts.facts import UnsafeTarget
from apps.core import clock, ids, node
from apps.core.errors import InvalidInput
from apps.dispatch import orphans
from apps.dispatch.errors import ReceiptJournalConflict
from apps.dispatch.fence import LeaseFence
from apps.dispatch.journal import Entry
from apps.dispatch.launching import receipts_root
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.orphans import OrphanStore
from apps.dispatch.receipts import Receipt, ReceiptStore, quarantine_reference
from apps.dispatch.services import orphans as auditor
from apps.dispatch.services import receipts
from tests.runs import kit

HOUR = timedelta(hours=1)
# More than the bounds of a pass, less than what makes a test slow.
OLD_S = 3_600


@pytest.fixture
def node_dir(settings: Any, tmp_path: Path) -> Path:
    settings.NODE_DIR = tmp_path / "node"
    return node.folder()


def aged(path: Path) -> Path:
    at = path.lstat().st_mtime - OLD_S
    os.utime(path, (at, at), follow_symlinks=False)
    return path


def name_in(shard: str) -> str:
    """An attempt id whose files lie in a shard."""
    return str(ids.uuid7())[:-2] + shard


def receipt_of(attempt_id: str, run_id: str | None = None) -> Receipt:
    return Receipt(run_id or str(ids.uuid7()), attempt_id, 1, kit.TOKEN, 1, 2, 0)


def published(attempt_id: str) -> Path:
    ReceiptStore(str(receipts_root())).publish(receipt_of(attempt_id))
    return aged(receipts_root() / attempt_id[-2:] / f"{attempt_id}.json")


def reserved(attempt_id: str, entry: Entry | None = None) -> Path:
    """What a killed shim leaves."""
    reservation = ReceiptStore(str(receipts_root())).reserve(attempt_id)
    if entry is not None:
        reservation.note(entry)
    [path] = (receipts_root() / attempt_id[-2:]).glob(f".{attempt_id}.*.tmp")
    return aged(path)


def started() -> LeaseFence:
    fence = kit.worker(node=node.node_id())
    lease = kit.claimed(fence, kit.run_of(kit.task(str(ids.uuid7())[-12:])))
    kit.advance(fence, lease)
    return lease


def whole(mode: str) -> dict[str, int]:
    """A whole round; the counts that are not zero."""
    counts: dict[str, int] = {}
    for start in range(0, 256, 32):
        for action, number in auditor.audit(mode, start=start, shards=32).counts.items():
            counts[action] = counts.get(action, 0) + number
    return {action: number for action, number in counts.items() if number}


# -- 30: the journal ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_runs_30_marking(time: Any, node_dir: Path) -> None:
    lease = started()
    reference, now = quarantine_reference(str(lease.attempt_id)), clock.now()
    for bad in ("../x", ".quarantine/a\\b", ".quarantine/../x", ".quarantine/\0", ".quarantine/" + "x" * 244):
        with pytest.raises(InvalidInput):
            receipts.mark_quarantined(lease.attempt_id, bad, now, now)
    with pytest.raises(InvalidInput):
        receipts.mark_quarantined(lease.attempt_id, reference, now, now - timedelta(milliseconds=1))
    assert CompletionReceiptJournal.objects.get().state == "pending"
    receipts.mark_quarantined(lease.attempt_id, reference, now, now + HOUR)
    # A crash came before the move: the second pass goes on, and the first purge time stays (§18.11).
    receipts.mark_quarantined(lease.attempt_id, reference, now + HOUR, now + 2 * HOUR)
    assert CompletionReceiptJournal.objects.get().purge_after == now + HOUR
    with pytest.raises(ReceiptJournalConflict):
        receipts.mark_quarantined(lease.attempt_id, ".quarantine/00/other.json", now, now + HOUR)
    with pytest.raises(ReceiptJournalConflict):
        receipts.mark_quarantined(ids.uuid7(), reference, now, now + HOUR)


@pytest.mark.django_db
def test_runs_23_the_journals_cursor(time: Any, node_dir: Path) -> None:
    leases = []
    for _number in range(3):
        leases.append(started())
        kit.finish(leases[-1].worker, leases[-1])
        time.advance(1)
    started()  # lives, and is its session's
    here, now = node.node_id(), clock.now()
    first = receipts.list_candidates(here, now, limit=2)
    assert [row.attempt_id for row in first.rows] == [
        lease.attempt_id for lease in leases[:2]
    ] and first.truncated
    last = receipts.list_candidates(here, now, limit=2, after=first.next_cursor)
    assert [row.attempt_id for row in last.rows] == [leases[2].attempt_id]
    assert not last.truncated and last.next_cursor is not None
    assert receipts.list_candidates(here, now, after=last.next_cursor).next_cursor is None
    for limit in (0, 129):
        with pytest.raises(InvalidInput):
            receipts.list_candidates(here, now, limit=limit)


@pytest.mark.django_db
def test_what_cannot_be_removed_starves_nobody(time: Any, node_dir: Path) -> None:
    """A folder stands where a receipt should, with something in it: its row stays, the others go."""
    stuck = started()
    kit.finish(stuck.worker, stuck)
    time.advance(1)
    good = started()
    kit.finish(good.worker, good)
    name = str(stuck.attempt_id)
    (receipts_root() / name[-2:] / f"{name}.json").mkdir(parents=True)
    (receipts_root() / name[-2:] / f"{name}.json" / "x").touch()
    published(str(good.attempt_id))
    store = ReceiptStore(str(receipts_root()))
    with patch.object(receipts, "MAX_PAGE", 1):
        found, cursor = [], None
        while True:
            page = receipts.scan(node.node_id(), store, cursor)
            found.append(page.resolved)
            if (cursor := page.next_cursor) is None:
                break
    assert found == [0, 1]
    assert CompletionReceiptJournal.objects.get().attempt_id == stuck.attempt_id


# -- 32: the file store ---------------------------------------------------------------------------------------


def test_runs_32_kinds(tmp_path: Path) -> None:
    folder = tmp_path / "ab"
    folder.mkdir()
    here, elsewhere = name_in("ab"), name_in("cd")
    names = {
        f"{here}.json": "receipt", f".{here}.{'0' * 32}.tmp": "temporary", f"{elsewhere}.json": "unknown",
        f".{here}.{'0' * 31}.tmp": "unknown", "notes.txt": "unknown", f"{here[:8]}.json": "unknown",
    }  # fmt: skip
    for name in names:
        (folder / name).write_bytes(b"x")
    (folder / "link").symlink_to(folder / "notes.txt")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    found = OrphanStore(str(tmp_path)).inspect_shard("ab")
    assert not found.overflow
    assert {one.name: one.kind for one in found.entries} == {
        **names,
        "link": "unsafe",
        "sub": "unsafe",
        "pipe": "unsafe",
    }
    assert {one.attempt_id for one in found.entries} == {here, None}
    assert OrphanStore(str(tmp_path)).inspect_shard("00").entries == ()


def test_runs_32_bounds(tmp_path: Path) -> None:
    store = OrphanStore(str(tmp_path))
    for shard in ("AB", "a", "abc", "zz", "..", ""):
        with pytest.raises(ValueError):
            store.inspect_shard(shard)
    for most in (0, 65):
        with pytest.raises(ValueError):
            store.inspect_shard("ab", most)
    for root in ("relative", "/", "/a\0b", "/proc"):
        with pytest.raises(ValueError):
            OrphanStore(root)
    (tmp_path / "ab").mkdir()
    for number in range(65):
        (tmp_path / "ab" / str(number)).touch()
    full = store.inspect_shard("ab", 64)
    assert full.overflow and len(full.entries) == 64
    (tmp_path / "ab" / "0").unlink()
    assert not store.inspect_shard("ab", 64).overflow


def test_runs_32_a_shard_outside_is_an_error(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "ab").symlink_to(outside)
    (root / "cd").touch()
    for shard in ("ab", "cd"):
        with pytest.raises(UnsafeTarget):
            OrphanStore(str(root)).inspect_shard(shard)


def _other_file(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.write_bytes(b"new")


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


REPLACE: dict[str, Callable[[Path], None]] = {
    "other inode": _other_file,
    "other time": lambda path: os.utime(path, (1, 1)),
    "gone": Path.unlink,
    "a link": _link,
    "a folder": _folder,
}


@pytest.mark.parametrize("how", REPLACE)
@pytest.mark.parametrize("when", ["before", "between"])
def test_runs_32_what_changed_meanwhile_stays(tmp_path: Path, how: str, when: str) -> None:
    """Before the move begins, and between its link and its last look."""
    (tmp_path / "ab").mkdir()
    path = tmp_path / "ab" / f"{name_in('ab')}.json"
    path.write_bytes(b"old")
    store = OrphanStore(str(tmp_path))
    [entry] = store.inspect_shard("ab").entries
    if when == "before":
        REPLACE[how](path)
        after = os.path.lexists(path) and path.lstat()
        assert store.quarantine(entry) is None
    else:
        link = os.link

        def then(*args: Any, **options: Any) -> None:
            link(*args, **options)
            REPLACE[how](path)

        with patch.object(os, "link", then):
            assert store.quarantine(entry) is None
        after = os.path.lexists(path) and path.lstat()
    assert (os.path.lexists(path) and path.lstat()) == after
    assert not list(tmp_path.rglob("*.entry"))


def test_runs_32_a_move_at_every_crash_point(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    path = tmp_path / "ab" / f"{name_in('ab')}.json"
    path.write_bytes(b"old")
    store = OrphanStore(str(tmp_path))
    [entry] = store.inspect_shard("ab").entries
    child = os.fork()
    if child == 0:
        Path.unlink = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        store.quarantine(entry)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert path.exists() and len(list((tmp_path / orphans.QUARANTINE).rglob("*.entry"))) == 1
    reference = store.quarantine(entry)
    assert reference is not None and not path.exists()
    moved = tmp_path / reference
    assert moved.read_bytes() == b"old" and stat.S_IMODE(moved.parent.stat().st_mode) == 0o700
    assert store.quarantine(entry) is None
    # The next of the same name is another file and gets a place of its own.
    path.write_bytes(b"new")
    [again] = store.inspect_shard("ab").entries
    other = store.quarantine(again)
    assert other not in (None, reference) and moved.read_bytes() == b"old"
    assert store.purge("ab", clock.now_ms() - 60_000) == 0
    assert store.purge("ab", clock.now_ms() + 60_000) == 2 and not moved.exists()


def test_runs_32_names_that_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "x").touch()
    store = OrphanStore(str(tmp_path))
    [entry] = store.inspect_shard("ab").entries
    for name in ("../x", "..", "", "a/b", "x\0"):
        with pytest.raises(ValueError):
            store.quarantine(replace(entry, name=name))
    with pytest.raises(ValueError):
        store.quarantine(replace(entry, shard="AB"))
