"""spec/runs.md §13.2, first half of scenario 40: which process runs a home."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.core import backup, canonical, node, runtime
from apps.core.node import Process
from apps.core.runtime import NAME, Receipt, RuntimeConflict, RuntimeUnsafe
from apps.dispatch.supervisor import prepare
from qinglong.environment import ConfigurationError

ME = Process.current()


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    settings.NODE_DIR = tmp_path / "node"
    return node.folder()


def left_by(root: Path, process: Process, state: str = "active") -> Receipt:
    """What an earlier start left."""
    at = 1_000
    receipt = Receipt("a" * 32, "edge", "3.0", at, at if state == "active" else at + 1, state, process, 1)
    (root / NAME).write_bytes(receipt.encode())
    (root / NAME).chmod(0o600)
    return receipt


def refused(root: Path) -> str:
    with pytest.raises(RuntimeConflict) as error:
        runtime.activate(root, "edge")
    return str(error.value.extra["reason"])


def test_runs_40_a_living_process_keeps_its_home(root: Path) -> None:
    left = left_by(root, ME)
    assert refused(root) == "still_live"
    assert runtime.read(root) == left
    for state in ("stopped", "failed"):
        left_by(root, ME, state)
        assert runtime.activate(root, "edge")
    left_by(root, ME, "stopping")
    assert refused(root) == "still_live"


@pytest.mark.parametrize(
    "gone",
    [replace(ME, started=ME.started + 1), replace(ME, boot="another boot"), Process(2**22 + 1, 1, ME.boot)],
)
def test_runs_40_what_is_gone_stands_in_nobodys_way(root: Path, gone: Process) -> None:
    old = left_by(root, gone)
    runtime.activate(root, "standalone")
    found = runtime.read(root)
    assert found is not None and found.activation_id != old.activation_id
    assert (found.process, found.state, found.profile) == (ME, "active", "standalone")
    assert found.activated_at_ms == found.updated_at_ms
    assert stat.S_IMODE((root / NAME).stat().st_mode) == 0o600
    assert [path.name for path in root.iterdir()] == [NAME]


def test_runs_40_how_it_goes_on(root: Path, time: Any) -> None:
    held = runtime.activate(root, "edge")
    time.advance(5)
    held.stopping()
    time.advance(-10)  # the clock steps back
    held.stopped()
    found = runtime.read(root)
    assert found is not None and found.state == "stopped"
    assert found.updated_at_ms == found.activated_at_ms + 5
    assert runtime.activate(root, "edge")


def test_runs_40_a_file_that_was_changed_is_not_ours_any_more(root: Path) -> None:
    held = runtime.activate(root, "edge")
    own = runtime.read(root)
    assert own is not None
    theirs = replace(own, activation_id="b" * 32).encode()
    (root / NAME).write_bytes(theirs)
    for step in (held.stopping, held.stopped, held.failed):
        with pytest.raises(RuntimeConflict) as error:
            step()
        assert error.value.extra["reason"] == "changed"
    assert (root / NAME).read_bytes() == theirs
    (root / NAME).unlink()
    with pytest.raises(RuntimeConflict):
        held.stopping()


def edited(receipt: Receipt, **changes: Any) -> bytes:
    """A whole receipt with a right digest over wrong values."""
    values = {**json.loads(receipt.encode()), **changes}
    del values["receipt_sha256"]
    values["receipt_sha256"] = canonical.domain_digest(runtime.DOMAIN, canonical.dumps(values))
    return canonical.dumps(values).encode() + b"\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: good.encode()[:-2],
        lambda good: good.encode() + b" " * runtime.BYTES_MAX,
        lambda good: good.encode().replace(b'"active"', b'"stoppd"'),
        lambda good: good.encode().replace(b'"edge"', b'"edge2"'),
        lambda good: edited(good, state="running"),
        lambda good: edited(good, updated_at_ms=2_000),
        lambda good: edited(good, more=1),
        lambda good: edited(good, process={"pid": 1}),
        lambda good: edited(good, activation_id="x"),
        lambda good: edited(good, schema_version=2),
    ],
)
def test_runs_40_a_damaged_file_is_an_error_and_stays(root: Path, damage: Any) -> None:
    data = damage(left_by(root, replace(ME, boot="gone")))
    (root / NAME).write_bytes(data)
    with pytest.raises(RuntimeUnsafe):
        runtime.activate(root, "edge")
    assert (root / NAME).read_bytes() == data


@pytest.mark.parametrize("kind", ["wide", "symlink", "folder", "fifo"])
def test_runs_40_an_unsafe_file_is_an_error(root: Path, kind: str, tmp_path: Path) -> None:
    path = root / NAME
    left_by(root, replace(ME, boot="gone"))
    if kind == "wide":
        path.chmod(0o640)
    elif kind == "symlink":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(RuntimeUnsafe):
        runtime.activate(root, "edge")


def test_runs_40_an_unsafe_root_is_refused(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    root.chmod(0o775)
    with pytest.raises(ConfigurationError) as error:
        prepare.lock()
    assert error.value.code == "runtime_receipt_unsafe" and "writable_by_others" in str(error.value)
    assert stat.S_IMODE(root.stat().st_mode) == 0o775
    root.chmod(0o700)
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(RuntimeUnsafe):
        runtime.activate(tmp_path / "link", "edge")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RuntimeUnsafe):
        runtime.activate(root, "edge")


def test_runs_40_holds_where_the_lock_was_removed(root: Path) -> None:
    """Somebody cleans up and takes the lock's file away: the second start is refused all the same."""
    script = (
        "import os, sys, time; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.session_settings'\n"
        "import django; django.setup()\n"
        "from apps.dispatch.supervisor import prepare\n"
        "held = prepare.lock(); runtime = prepare.activate(); print('held', flush=True); time.sleep(60)\n"
    )
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("QINGLONG_")},
        "QINGLONG_HOME": str(root.parent), "TEST_DATABASE": "none",
    }  # fmt: skip
    first = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        (root / "up.lock").unlink()
        lock = prepare.lock()
        with pytest.raises(ConfigurationError) as error:
            prepare.activate()
        assert error.value.code == "already_running"
        lock.release()
    finally:
        first.kill()
        first.wait()
    assert prepare.activate()


def test_runs_40_a_copy_does_not_say_who_runs_the_original(root: Path) -> None:
    runtime.activate(root, "edge")
    names = [name for name, _path in backup._files("node", root, backup._NODE_LEFT_OUT)]
    assert names == []
