"""spec/runs.md §14, second half of scenario 40: what a node accepted and how far it came, after any crash."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from apps.core import backup, node
from apps.dispatch import journal
from apps.dispatch.journal import Entry
from apps.dispatch.launcher.tree import boot_id
from apps.dispatch.receipts import ReceiptStore
from apps.runs.models import RunAttempt
from qinglong.environment import ConfigurationError
from tests.dispatch.conftest import home  # noqa: F401
from tests.dispatch.sessions import Home, wait
from tests.dispatch.shim_kit import Kit, alive, until
from tests.runs import kit as runs

RUN = "0198c0de-0000-7000-8000-000000000001"
ATTEMPT = "0198c0de-0000-7000-8000-000000000002"
ENTRY = Entry(RUN, ATTEMPT, "accepted", 42, 7, "b" * 36, 1_000)


@pytest.fixture
def kit(tmp_path: Path) -> Any:
    found = Kit(tmp_path)
    yield found
    found.finish()


def states(live: Any) -> list[str | None]:
    return [one and one.state for one in journal.entries(live.spec.receipts_root, live.spec.attempt_id)]


def test_runs_40_one_private_entry_as_long_as_the_attempt_lives(kit: Kit) -> None:
    gate = kit.home / "gate"
    live = kit.launch(f"while ! test -e {gate}; do sleep 0.02; done")
    ready = live.wait("ready")
    [entry] = journal.entries(live.spec.receipts_root, live.spec.attempt_id)
    assert entry is not None
    assert (entry.state, entry.run_id, entry.pid, entry.boot_id) == (
        "accepted", live.spec.run_id, ready.pid, boot_id(),
    )  # fmt: skip
    [file] = [path for path in Path(live.spec.receipts_root).rglob("*") if path.is_file()]
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_size) == (0o600, 4096)
    assert live.spec.token.encode() not in file.read_bytes()
    live.go().wait("started")
    assert states(live) == ["started"]
    gate.touch()
    live.end()
    assert states(live) == []


@pytest.mark.parametrize("moment", ["accepted", "started"])
def test_runs_40_a_killed_shim_leaves_what_it_noted(kit: Kit, moment: str) -> None:
    live = kit.launch("sleep 60 & wait")
    pid = live.wait("ready").pid
    if moment == "started":
        live.go().wait("started")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "the end of the shim")
    assert states(live) == [moment]
    found = journal.entries(live.spec.receipts_root, live.spec.attempt_id)
    assert journal.never_launched(found, boot_id()) is (moment == "accepted")
    assert not journal.never_launched(found, "another boot")


@pytest.mark.parametrize("moment", ["accepted", "started"])
def test_runs_40_launched_or_not_has_an_answer(home: Home, moment: str, monkeypatch: Any) -> None:  # noqa: F811
    """Shim and session killed together, before the script was let go or after."""
    from apps.dispatch.source import RunSource

    class Dead(BaseException):
        pass

    def die(source: RunSource, item: Any) -> None:
        assert item.handle is not None
        if moment == "started":
            item.shim.go()
            wait(lambda: (home.path / "ran").exists(), "the start of the script")
        os.kill(item.handle.pid, signal.SIGKILL)
        until(lambda: not alive(item.handle.pid), "the end of the shim")
        raise Dead

    run = runs.run_of(runs.task(shell=f"echo x >> {home.path}/ran; test $QINGLONG_ATTEMPT = 2 || sleep 60"))
    with monkeypatch.context() as patch, pytest.raises(Dead):
        patch.setattr(RunSource, "_go", die)
        home.session()
    home.session()
    found = runs.fresh(run)
    first = RunAttempt.objects.get(run=run, attempt=1)
    if moment == "accepted":
        assert (found.status, first.error_code) == ("succeeded", "RECOVERY_NEVER_STARTED")
    else:
        assert (found.status, first.error_code) == ("lost", "RECOVERY_ATTEMPT_INCOMPLETE")
    assert (home.path / "ran").read_text() == "x\n"
    runs.check_history(run)


def test_runs_40_only_the_holder_of_the_nodes_lock_writes(kit: Kit) -> None:
    """Entries come from shims, shims from the one launcher that holds the node."""
    kit.run("true")
    import subprocess
    import sys

    program = Path("apps/dispatch/launcher/__main__.py").absolute()
    second = subprocess.run(
        [sys.executable, "-I", "-S", str(program), "--node-dir", str(kit.node)],
        capture_output=True,
        check=False,
    )
    assert second.returncode == 3 and b"another launcher" in second.stderr


def test_runs_40_a_node_carries_at_most_1024(settings: Any, tmp_path: Path) -> None:
    settings.NODE_DIR = tmp_path / "node"
    held = [node.claim_slot(most=journal.CAPACITY // 400) for _ in range(2)]
    with pytest.raises(node.NoFreeSlot):
        node.claim_slot(most=journal.CAPACITY // 400)
    for lock in held:
        lock.release()
    with pytest.raises(ConfigurationError, match="at most 1024 scripts"):
        call_command("up", workers=3, slots=400)


BAD = {
    "nothing": b"",
    "no line": ENTRY.encode()[:-1],
    "zeros": b"\0" * 4096,
    "a list": b"[]\n",
    "nested": b"[" * 4000 + b"\n",
    "another state": ENTRY.encode().replace(b"accepted", b"finished"),
    "another key": ENTRY.encode().replace(b'"pid"', b'"pod"'),
    "an extra key": ENTRY.encode().replace(b"{", b'{"more":1,', 1),
    "text for a number": ENTRY.encode().replace(b'"pid":42', b'"pid":"42"'),
    "a truth value": ENTRY.encode().replace(b'"pid":42', b'"pid":true'),
    "another schema": ENTRY.encode().replace(b'"schema_version":1', b'"schema_version":2'),
    "another attempt": ENTRY.encode().replace(ATTEMPT.encode(), RUN.encode()),
}


@pytest.mark.parametrize("kind", [*BAD, "symlink", "fifo"])
def test_runs_40_what_cannot_be_read_proves_nothing(tmp_path: Path, kind: str) -> None:
    root = str(tmp_path)
    folder = tmp_path / ATTEMPT[-2:]
    folder.mkdir()
    path = folder / f".{ATTEMPT}.{'0' * 32}.tmp"
    if kind == "symlink":
        (tmp_path / "target").write_bytes(ENTRY.encode())
        path.symlink_to(tmp_path / "target")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(BAD[kind])
    assert journal.entries(root, ATTEMPT) == [None]
    assert not journal.never_launched([None], ENTRY.boot_id)
    path.unlink()
    path.write_bytes(ENTRY.encode() + b"\0" * 100)
    assert journal.entries(root, ATTEMPT) == [ENTRY]
    assert journal.never_launched([ENTRY], ENTRY.boot_id)
    assert not journal.never_launched([ENTRY, None], ENTRY.boot_id)


def test_runs_40_entries_never_leave_the_node(tmp_path: Path) -> None:
    ReceiptStore(str(tmp_path / "receipts")).reserve(ATTEMPT).note(ENTRY)
    assert list(backup._files("node", tmp_path, backup._NODE_LEFT_OUT)) == []


def test_runs_40_an_entry_gives_way_to_its_receipt(tmp_path: Path) -> None:
    from apps.dispatch.receipts import Receipt

    store = ReceiptStore(str(tmp_path))
    reservation = store.reserve(ATTEMPT)
    reservation.note(ENTRY)
    receipt = Receipt(RUN, ATTEMPT, 1, "t" * 43, 1, 2, 3)
    reservation.publish(receipt)
    assert store.read(ATTEMPT) == receipt
    assert json.loads((tmp_path / "02" / f"{ATTEMPT}.json").read_bytes())["exit_code"] == 3
