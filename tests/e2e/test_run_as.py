"""A whole panel whose scripts have a user of their own: a hostile one finds nothing."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.dispatch.launcher import confine
from tests.e2e.person import Api, manage, set_up
from tests.e2e.test_up import refused
from tests.e2e.up_kit import Up, database, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not confine.may_switch(), reason="needs the right to become another user"),
]
NOBODY = pwd.getpwnam("nobody")

# Knows what is where: `paths` are all files, folders and sockets of the home that are not its own.
HOSTILE = """
import json, os, signal, socket
world = json.load(open(os.environ["QINGLONG_INPUT"]))
found = []
def tried(name, act):
    try:
        act()
    except OSError:
        return
    found.append(name)
def link(path):
    # Some kernels let anybody give a file a second name; that alone opens nothing.
    name = os.path.basename(path) + ".linked"
    os.link(path, name)
    os.close(os.open(name, os.O_RDONLY | os.O_NONBLOCK))
for path in world["paths"]:
    tried(f"read {path}", lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
    tried(f"write {path}", lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
    tried(f"list {path}", lambda: os.listdir(path))
    tried(f"make in {path}", lambda: os.mkdir(f"{path}/planted"))
    tried(f"rename {path}", lambda: os.rename(path, f"{path}.moved"))
    tried(f"change {path}", lambda: os.chmod(path, 0o777))
    tried(f"link {path}", lambda: link(path))
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        tried(f"talk to {path}", lambda: socket.socket(socket.AF_UNIX, kind).connect(path))
everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]
for pid in {*world["pids"], os.getppid()}:
    assert pid in everybody, pid
    for name in ("environ", "mem", "maps", "auxv", "io", "cwd", "fd", "task/%d/fd" % pid):
        tried(f"{name} of {pid}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
        tried(f"{name} of {pid}", lambda: os.readlink(f"/proc/{pid}/{name}"))
        tried(f"{name} of {pid}", lambda: os.listdir(f"/proc/{pid}/{name}"))
    for number in (0, signal.SIGTERM, signal.SIGSTOP):
        tried(f"signal to {pid}", lambda: os.kill(pid, number))
    tried(f"priority of {pid}", lambda: os.setpriority(os.PRIO_PROCESS, pid, 5))
shown = [name for name in os.environ if name not in world["names"]]
print(json.dumps({"found": found, "shown": shown, "looked": len(world["paths"])}))
"""
NAMES = [
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "PYTHONUNBUFFERED", "RUN_FENCE", "LC_CTYPE",
    *(f"QINGLONG_{name}" for name in ("RUN_ID", "TASK", "PROJECT", "ATTEMPT", "TRIGGER")),
    *(f"QINGLONG_{name}" for name in ("INPUT", "OUTPUT", "ARTIFACTS")),
]  # fmt: skip


@pytest.fixture
def home() -> Iterator[Path]:
    """One that others can reach, as in /var/lib; pytest's own folders are closed."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="run-as-"))
    folder.chmod(0o755)
    yield folder / "home"
    shutil.rmtree(folder)


def all_of(home: Path) -> list[str]:
    """Everything but what belongs to scripts."""
    found = [str(home)]
    for folder, folders, files in os.walk(home):
        if Path(folder).stat().st_uid == NOBODY.pw_uid:
            folders.clear()
            continue
        found += [f"{folder}/{name}" for name in (*folders, *files)]
    return [path for path in found if os.lstat(path).st_uid != NOBODY.pw_uid]


def test_a_hostile_script_in_a_whole_panel(home: Path) -> None:
    with database() as extra:
        up = Up(home, QINGLONG_RUN_AS="nobody", **extra).wait_ready()
        try:
            api = Api(up.port, set_up(up.home, **extra))
            idle = api.start(api.make(shell="echo mine > kept; sleep 300"))
            eventually(lambda: [*home.glob("homes/default/*/kept")], "the idle script")
            paths = all_of(home)
            for name in ("keyring.json", "secret_key", "run", "node/launcher.sock", "node/receipts", "logs"):
                assert str(home / name) in paths
            assert [path for path in paths if path.endswith(".tmp")], "the reservation of a receipt"
            pids = [up.process.pid, up.launcher(), *up.parts().values()]
            task = api.make(script={"language": "python", "source": HOSTILE})
            run = api.start(task, input={"paths": paths, "names": NAMES, "pids": pids})
            ended = api.until(run)
            assert ended["status"] == "succeeded", api.log(run)
            assert json.loads(api.log(run)) == {"found": [], "shown": [], "looked": len(paths)}
            assert stat.S_IMODE(home.stat().st_mode) == 0o710
            assert "\nok       run_as " in manage(home, "doctor", QINGLONG_RUN_AS="nobody", **extra)
            api.ok("POST", f"/runs/{idle}/stop", {})
            assert api.until(idle)["status"] == "cancelled"
            eventually(lambda: not [*home.glob("node/attempts/*/*")], "attempt folders to be removed")
        finally:
            up.stop()


@pytest.mark.parametrize(
    ("user", "code"), [("nobody-of-that-name", "run_as_unknown"), ("root", "run_as_no_other")]
)
def test_a_user_that_scripts_cannot_have(home: Path, user: str, code: str) -> None:
    refused(Up(home, QINGLONG_RUN_AS=user), code)
    assert not (home / "db.sqlite3").exists()
