"""runs.md, scenario 32: what the auditor of files keeps and what goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from apps.core import clock, ids, node
from apps.core.errors import InvalidInput
from apps.dispatch import jobs, orphans
from apps.dispatch.journal import Entry
from apps.dispatch.launcher.files import make_attempt_folder
from apps.dispatch.launching import attempt_folder, receipts_root
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.receipts import ReceiptStore
from apps.dispatch.services import orphans as auditor
from apps.runs.models import RunAttempt
from tests.runs import kit
from tests.spec.test_runs_30_32_orphans import (
    aged,
    name_in,
    published,
    reserved,
    started,
    whole,
)


@pytest.fixture
def node_dir(settings: Any, tmp_path: Path) -> Path:
    settings.NODE_DIR = tmp_path / "node"
    return node.folder()


@pytest.mark.django_db
def test_runs_32_what_is_kept_and_what_goes(node_dir: Path) -> None:
    live, ended = started(), started()
    kit.finish(ended.worker, ended)
    kept = [reserved(str(live.attempt_id)), published(str(ended.attempt_id))]  # one lives, one is journaled
    young = published(name_in("11"))
    os.utime(young)
    me = node.Process.current()
    silent = str(ids.uuid7())
    kept.append(reserved(silent, Entry(str(ids.uuid7()), silent, "started", me.pid, me.started, me.boot, 1)))
    kept.append(young)
    dead = str(ids.uuid7())
    gone = [
        published(name_in("22")),
        reserved(dead, Entry(str(ids.uuid7()), dead, "started", me.pid, me.started + 1, me.boot, 1)),
        reserved(name_in("33")),
        receipts_root() / "22" / "notes",
    ]
    gone[-1].touch()
    aged(gone[-1])
    (receipts_root() / "33" / "link").symlink_to("/etc/passwd")
    seen = {"kept_active": 1, "kept_journaled": 1, "kept_live": 1, "kept_young": 1, "unsafe": 1}
    assert whole("audit") == {**seen, "eligible": 4}
    assert all(path.exists() for path in [*kept, *gone])
    assert whole("quarantine") == {**seen, "quarantined": 4}
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)
    assert len(list((receipts_root() / orphans.QUARANTINE).rglob("*.entry"))) == 4
    forgotten = published(name_in("22"))
    ReceiptStore(str(receipts_root())).quarantine(forgotten.stem)  # its row is gone
    later = clock.now_ms() + int(auditor.KEEP_FOR.total_seconds() * 1000) + 60_000
    with clock.fixed(lambda: later):
        assert whole("quarantine")["purged"] == 5


@pytest.mark.django_db
def test_runs_32_a_shard_that_is_too_full_is_left(node_dir: Path) -> None:
    paths = [published(name_in("44")) for _ in range(33)]
    assert whole("quarantine") == {"blocked_overflow": 32}
    assert all(path.exists() for path in paths)
    assert auditor.audit("quarantine", start=0x44, shards=1, entries=64).counts["quarantined"] == 33


@pytest.mark.django_db
def test_folders_of_attempts(node_dir: Path, monkeypatch: Any) -> None:
    """Those of lost attempts, whatever they were given, and empty ones of claims that moved to another node."""
    live, lost, moved, ours = (started() for _ in range(4))
    RunAttempt.objects.filter(pk=lost.attempt_id).update(status="lost", finished_at=clock.now())
    CompletionReceiptJournal.objects.filter(attempt_id=lost.attempt_id).delete()
    RunAttempt.objects.filter(pk=moved.attempt_id).update(worker_id=f"{'b' * 32}:1")
    folders = {}
    for lease in (live, lost, moved, ours):
        folders[lease] = Path(attempt_folder(RunAttempt.objects.get(pk=lease.attempt_id)))
        make_attempt_folder(str(folders[lease]))
    (folders[lost] / "input.json").write_text('{"password": "hunter2"}')
    (folders[live] / "input.json").write_text("{}")
    folders[lost].chmod(0o700)
    unknown = node_dir / "attempts" / "55" / name_in("55")
    make_attempt_folder(str(unknown))
    (unknown / "output.json").touch()
    strange = node_dir / "attempts" / "55" / "strange"
    strange.touch()
    for path in [*folders.values(), unknown, strange]:
        aged(path)
    kept = {"kept_active": 2, "kept_unknown": 1, "unsafe": 1}
    assert whole("audit") == {**kept, "eligible": 2}
    left = type("Left", (), {"gone": lambda self: False})()
    with monkeypatch.context() as patched:
        patched.setattr(auditor.predecessors, "one", lambda _attempt: left)
        assert whole("quarantine") == {**kept, "kept_live": 1, "removed": 1}
    assert folders[lost].exists() and not folders[moved].exists()
    assert whole("quarantine") == {**kept, "removed": 1}
    assert not folders[lost].exists()
    assert folders[live].exists() and folders[ours].exists() and unknown.exists()


@pytest.mark.django_db
def test_bounds_of_a_pass(node_dir: Path) -> None:
    for bad in (
        {"start": 256},
        {"start": -1},
        {"shards": 0},
        {"shards": 33},
        {"entries": 65},
        {"mode": "delete"},
    ):
        with pytest.raises(InvalidInput):
            auditor.audit(**bad)
    assert auditor.audit(start=252).next_shard == 4


@pytest.mark.django_db
def test_job_and_command(node_dir: Path, capsys: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert jobs.audit_receipts({}) == {node.node_id(): 8}
    path = published(name_in("09"))
    call_command("audit_receipts")
    assert f"receipts/09/{path.name}: eligible" in capsys.readouterr().out and path.exists()
    with django_assert_num_queries(2):
        cursor = jobs.audit_receipts({"b" * 32: 7, node.node_id(): 8})
    assert cursor == {"b" * 32: 7, node.node_id(): 16} and not path.exists()
    path = published(name_in("09"))
    call_command("audit_receipts", "--quarantine")
    assert "quarantined 1" in capsys.readouterr().out and not path.exists()
