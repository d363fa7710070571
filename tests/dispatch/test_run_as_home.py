"""The way of scripts that have a user of their own: opened, closed, and refused where it cannot be safe."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core import node
from apps.dispatch import run_as
from apps.dispatch.launcher import confine
from apps.dispatch.launcher.homes import GATE
from qinglong.environment import ConfigurationError, private_folder

pytestmark = pytest.mark.skipif(not confine.may_switch(), reason="needs the right to become another user")
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def place(settings: Any) -> Iterator[Path]:
    """A home where others could come by."""
    top = Path(tempfile.mkdtemp(dir="/tmp", prefix="run-as-"))
    top.chmod(0o755)
    home = top / "home"
    settings.HOME, settings.NODE_DIR = home, home / "node"
    settings.RUN_DIR, settings.LOG_ROOT = home / "run", home / "logs"
    settings.KEYRING_PATH, settings.RUN_AS = home / "keyring.json", "nobody"
    for folder in (home, settings.RUN_DIR, settings.LOG_ROOT):
        private_folder(folder)
    node.node_id()
    (home / "keyring.json").touch(0o600)
    yield home
    shutil.rmtree(top)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal() -> str:
    with pytest.raises(ConfigurationError) as refused:
        run_as.arrange()
    return refused.value.code


def test_opened_as_far_as_needed_and_closed_again(place: Path, settings: Any) -> None:
    (place / "copy.sqlite3").touch()
    (place / "copy.sqlite3").chmod(0o644)
    (place / "backups").mkdir(0o755)
    (place / "link").symlink_to("/etc/passwd")
    task = place / "homes" / "default" / "task"
    task.mkdir(parents=True)
    os.chown(task, NOBODY.pw_uid, NOBODY.pw_gid)
    run_as.arrange()
    gates = [place, place / "node", place / "node" / "attempts", place / "homes"]
    assert {(mode(gate), gate.stat().st_gid, gate.stat().st_uid) for gate in gates} == {
        (GATE, NOBODY.pw_gid, os.geteuid())
    }
    assert (mode(place / "copy.sqlite3"), mode(place / "backups")) == (0o600, 0o700)
    assert mode(Path("/etc/passwd")) == 0o644
    # What any command does at its start leaves running scripts their way.
    private_folder(place)
    node.folder("workers")
    run_as.arrange()
    assert {mode(gate) for gate in gates} == {GATE}
    assert task.stat().st_uid == NOBODY.pw_uid
    settings.RUN_AS = None
    run_as.arrange()
    assert (mode(place), task.stat().st_uid) == (0o700, os.geteuid())


def test_a_home_that_the_user_cannot_reach(place: Path) -> None:
    place.parent.chmod(0o700)
    assert refusal() == "run_as_home_unreachable"


def test_a_home_that_the_user_could_move_away(place: Path) -> None:
    os.chown(place.parent, NOBODY.pw_uid, NOBODY.pw_gid)
    assert refusal() == "run_as_home_exposed"


def test_a_program_that_the_user_could_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = place.parent / "bin" / "python"
    program.parent.mkdir()
    program.touch()
    os.chown(program.parent, NOBODY.pw_uid, NOBODY.pw_gid)
    monkeypatch.setattr(sys, "executable", str(program))
    assert refusal() == "run_as_home_exposed"


@pytest.mark.parametrize("name", ["keyring.json", "run", "node/id"])
def test_a_home_with_something_of_the_user_in_it(place: Path, name: str) -> None:
    os.chown(place / name, NOBODY.pw_uid, NOBODY.pw_gid)
    assert refusal() == "run_as_can_read"


def test_a_gate_that_is_none(place: Path) -> None:
    other = place.parent / "other"
    other.mkdir(0o755)
    (place / "homes").symlink_to(other)
    assert refusal() == "run_as_home_unusable"
    assert (other.stat().st_gid, mode(other)) == (os.getegid(), 0o755)


@pytest.mark.parametrize(
    ("user", "code"), [("nobody-of-that-name", "run_as_unknown"), ("root", "run_as_no_other")]
)
def test_users_that_scripts_cannot_have(place: Path, settings: Any, user: str, code: str) -> None:
    settings.RUN_AS = user
    assert refusal() == code


def test_without_the_right_to_switch(place: Path, settings: Any) -> None:
    settings.RUN_AS = "daemon"
    pid = os.fork()
    if pid == 0:
        confine.become(NOBODY.pw_uid, NOBODY.pw_gid, (NOBODY.pw_gid,))
        try:
            run_as.arrange()
        except ConfigurationError as error:
            os._exit(0 if error.code == "run_as_not_permitted" else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
