"""What lost attempts leave: secrets by file go as soon as nothing runs any more, files of the script are kept."""

from __future__ import annotations

import hashlib
import os
import pwd
import signal
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from apps.artifacts import collected
from apps.artifacts.models import Artifact
from apps.core import clock
from apps.dispatch import launching, remains
from apps.dispatch.launcher import confine
from apps.dispatch.launcher.client import Handle
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.services import orphans
from apps.dispatch.services import remains as recording
from apps.projects.policy import Grant
from apps.runs.models import Run, RunAttempt, RunEvent
from apps.vault import services
from tests.dispatch.sessions import Home, wait, wait_for
from tests.runs import kit

VALUE = "hunter2-is-long-enough"
MANAGE = Grant.system("default", "secret.manage", "tests")


def shell(home: Home, leaves: str = 'echo x > "$QINGLONG_ARTIFACTS/report.txt"') -> str:
    """Leaves files, says its pid, and goes on until it is let."""
    return f"{leaves}; echo $$ > {home.path}/pid; while ! test -e {home.path}/gate; do sleep 0.02; done"


def secret_task(home: Home, **values: Any) -> Any:
    services.put(MANAGE, "tls", VALUE, mutation_id="m", expected_version=0)
    return kit.task(shell=shell(home), secrets={"TLS": {"secret": "tls", "as": "file"}}, **values)


def script(home: Home) -> int:
    path = home.path / "pid"
    wait(lambda: path.exists() and path.read_text().strip(), "the script")
    return int(path.read_text())


def kill_shim(run: Run) -> None:
    os.kill(Handle.decode(kit.attempt_of(run).executor_handle or "").pid, signal.SIGKILL)


def folder_of(run: Run) -> Path:
    return Path(launching.attempt_folder(kit.attempt_of(run)))


def in_the_clear(home: Home) -> list[Path]:
    """Files of the node that hold the value."""
    found = (path for path in home.node.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if VALUE.encode() in path.read_bytes()]


def files_of(run: Run) -> list[tuple[str, int, str]]:
    rows = Artifact.objects.filter(run=run).order_by("position")
    attempt = kit.attempt_of(run)
    for row in rows:
        path = Path(
            collected.folder_of(str(settings.LOG_ROOT), attempt.log_artifact_id or ""), str(row.position)
        )
        assert hashlib.sha256(path.read_bytes()).hexdigest() == row.sha256
        assert row.attempt_id == attempt.pk
    return [(row.name, row.size, row.content_type) for row in rows]


def told(run: Run) -> list[dict[str, Any]]:
    rows = RunEvent.objects.filter(run=run, type="attempt.files_found").order_by("sequence")
    return [{name: row.payload["files"][name] for name in ("kept", "left_out")} for row in rows]


def test_a_killed_tree_leaves_no_secret_and_loses_no_file(home: Home) -> None:
    run = kit.run_of(secret_task(home))
    with home.session_beside():
        wait_for(run, "running")
        pid = script(home)
        assert len(in_the_clear(home)) == 1
        kill_shim(run)
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        wait_for(run, "lost")
        # The usual time of the auditor is not moved here: this is the session's own doing.
        wait(lambda: not folder_of(run).exists(), "the folder to go")
        assert in_the_clear(home) == []
    # With secrets nobody can say what is in a name.
    assert files_of(run) == [("file", 2, "text/plain")]
    assert told(run) == [{"kept": 1, "left_out": {}}]
    assert kit.fresh(run).status == "lost"


def test_what_a_living_script_reads_stays_until_it_ends(home: Home) -> None:
    run = kit.run_of(secret_task(home))
    with home.session_beside():
        wait_for(run, "running")
        script(home)
        kill_shim(run)
        wait_for(run, "lost")
        wait(lambda: recording.waiting(os_node(run)), "the session to know")
        assert len(in_the_clear(home)) == 1 and not Artifact.objects.exists()
        (home.path / "gate").touch()
        wait(lambda: not folder_of(run).exists(), "the folder to go")
    assert in_the_clear(home) == [] and len(files_of(run)) == 1


def os_node(run: Run) -> str:
    return (kit.attempt_of(run).worker_id or "").partition(":")[0]


def test_the_next_session_does_what_a_killed_one_did_not(home: Home) -> None:
    """kill -9 of session, shim and script at once: recovery loses the run, and clears."""
    leaves = 'cd "$QINGLONG_ARTIFACTS"; mkdir a; echo 1 > a/b.csv; ln -s /etc/passwd c; cd /'
    run = kit.run_of(kit.task(shell=shell(home, leaves)))
    worker = home.worker()
    wait_for(run, "running")
    pid = script(home)
    home.kill(worker)
    kill_shim(run)
    os.killpg(os.getpgid(pid), signal.SIGKILL)
    home.session()
    assert kit.fresh(run).status == "lost" and not folder_of(run).exists()
    assert files_of(run) == [("a/b.csv", 2, "text/csv")]
    assert told(run) == [{"kept": 1, "left_out": {"symlink": 1}}]


def test_the_auditor_keeps_what_no_session_did(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kit.run_of(secret_task(home))
    with monkeypatch.context() as patch:
        patch.setattr(remains.Waiting, "add", lambda *_args: None)
        with home.session_beside():
            wait_for(run, "running")
            pid = script(home)
            kill_shim(run)
            os.killpg(os.getpgid(pid), signal.SIGKILL)
            wait_for(run, "lost")
    assert len(in_the_clear(home)) == 1
    CompletionReceiptJournal.objects.all().delete()
    shard = int(folder_of(run).parent.name, 16)
    ahead = clock.now_ms() + 600_000
    with clock.fixed(lambda: ahead):
        report = orphans.audit("audit", start=shard, shards=1)
        assert (f"attempts/{shard:02x}", str(kit.attempt_of(run).pk), "eligible") in report.actions
        assert not Artifact.objects.exists()
        report = orphans.audit("quarantine", start=shard, shards=1)
    assert report.counts["removed"] == 1, report
    assert in_the_clear(home) == [] and len(files_of(run)) == 1 and len(told(run)) == 1


def _lost(home: Home, leaves: str) -> tuple[Run, remains.Remains]:
    """A lost attempt whose remains nobody looked at."""
    run = kit.run_of(kit.task(shell=shell(home, leaves)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remains.Waiting, "add", lambda *_args: None)
        with home.session_beside():
            wait_for(run, "running")
            pid = script(home)
            kill_shim(run)
            os.killpg(os.getpgid(pid), signal.SIGKILL)
            wait_for(run, "lost")
    (left,) = recording.waiting(os_node(run))
    wait(left.over, "the tree to be gone")
    return run, left


def test_killed_at_any_step_it_is_done_once(home: Home) -> None:
    """Moved without a manifest, with one, on record: each goes on where it was."""
    run, left = _lost(home, 'cd "$QINGLONG_ARTIFACTS"; echo 1 > a; echo 2 > b; echo 3 > c; cd /')
    target = Path(collected.folder_of(str(settings.LOG_ROOT), left.log.artifact_id))
    source = left.folder / "artifacts"
    target.mkdir(mode=0o700)
    (source / "a").rename(target / "1")
    (source / "b").rename(target / "2")
    (target / "manifest.tmp").write_text("{")
    (source / "unnamed-1").write_text("put back before")
    kept = left.take()
    # Their names went with who had moved them.
    assert [file.name for file in kept.files] == ["c", "unnamed-1", "unnamed-2", "unnamed-3"]
    assert sorted(file.size for file in kept.files) == [2, 2, 2, len("put back before")]
    assert left.take().files == kept.files
    assert recording.record(left.attempt.pk, kept)
    assert not recording.record(left.attempt.pk, left.take())
    assert [name for name, _size, _type in files_of(run)] == ["c", "unnamed-1", "unnamed-2", "unnamed-3"]
    assert len(told(run)) == 1
    home.session()
    assert not left.folder.exists() and Artifact.objects.count() == 4


def test_nothing_is_put_back_through_a_link(home: Home) -> None:
    """The folder was the script's: it may lead elsewhere, where the panel may write and the script may not."""
    _run, left = _lost(
        home, 'rmdir "$QINGLONG_ARTIFACTS"; mkdir "$HOME/else"; ln -s "$HOME/else" "$QINGLONG_ARTIFACTS"'
    )
    target = Path(collected.folder_of(str(settings.LOG_ROOT), left.log.artifact_id))
    target.mkdir(mode=0o700)
    (target / "1").write_text("x")
    assert remains.taken(left) is None
    (elsewhere,) = home.path.rglob("else")
    assert list(elsewhere.iterdir()) == [] and (target / "1").exists()


@pytest.mark.skipif(not confine.may_switch(), reason="needs the right to become another user")
def test_files_of_another_user_become_the_panels(home: Home) -> None:
    """As QINGLONG_RUN_AS leaves them, one of them moved already by a shim that was killed then."""
    run, left = _lost(home, 'cd "$QINGLONG_ARTIFACTS"; echo 1 > a; echo 2 > b; cd /')
    user = pwd.getpwnam("nobody")
    (left.folder / "work").mkdir(mode=0o700)
    source = (left.folder / "artifacts").rename(left.folder / "work/artifacts")
    for path in (left.folder / "work", source, source / "a", source / "b"):
        os.chown(path, user.pw_uid, user.pw_gid)
    target = Path(collected.folder_of(str(settings.LOG_ROOT), left.log.artifact_id))
    target.mkdir(mode=0o700)
    (source / "a").rename(target / "1")
    os.chown(target / "1", 0, 0)
    (source / "c").write_text("somebody else's")
    kept = left.take()
    assert ([file.name for file in kept.files], kept.left_out) == (["b", "unnamed-1"], {"foreign": 1})
    for number in ("1", "2"):
        found = (target / number).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o600)
    assert recording.record(left.attempt.pk, kept) and len(files_of(run)) == 2


def test_a_script_that_left_nothing_tells_nothing(home: Home) -> None:
    run, left = _lost(home, "true")
    assert left.take() == collected.Kept((), {})
    version = kit.fresh(run).version
    home.session()
    assert not left.folder.exists() and told(run) == [] and kit.fresh(run).version == version


def test_only_a_lost_attempt_has_remains(home: Home) -> None:
    """What ended in time, or goes on, is not touched, whoever asks."""
    run = kit.run_of(kit.task(shell=shell(home)))
    with home.session_beside():
        wait_for(run, "running")
        script(home)
        attempt = kit.attempt_of(run)
        assert recording.of([attempt]) == [] and recording.waiting(os_node(run)) == []
        kept = collected.Kept((collected.Collected("a", 1, "0" * 64, "text/plain"),), {})
        assert not recording.record(attempt.pk, kept) and not Artifact.objects.exists()
        (home.path / "gate").touch()
        wait_for(run, "succeeded")
    assert RunAttempt.objects.get(run=run).status == "succeeded"
    assert [name for name, _size, _type in files_of(run)] == ["report.txt"]


def test_a_file_that_cannot_be_kept_costs_the_folder_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run, left = _lost(home, 'echo x > "$QINGLONG_ARTIFACTS/a"')

    def full(*_args: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(remains.collecting, "collect", full)
    assert remains.taken(left) is None
    # The session leaves it; the auditor, whose time has come, does not: values lie there in the clear.
    home.session()
    assert left.folder.exists()
    CompletionReceiptJournal.objects.all().delete()
    ahead = clock.now_ms() + int(timedelta(minutes=10).total_seconds() * 1000)
    with clock.fixed(lambda: ahead):
        orphans.audit("quarantine", start=int(left.folder.parent.name, 16), shards=1)
    assert not left.folder.exists() and not Artifact.objects.exists()
