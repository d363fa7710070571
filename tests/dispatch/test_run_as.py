"""Scripts under a user of their own: what such a script can reach, and what it can do to whoever cleans up."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.dispatch.carried import never_started, read_left, remove_folder
from apps.dispatch.launcher import cgroups, client, confine, homes
from apps.dispatch.launcher.homes import PASSABLE
from apps.dispatch.launcher.reading import parse
from apps.dispatch.launcher.spec import CommandBody, Limits, RunAs, ScriptBody, SpecError
from tests.dispatch.shim_kit import PATH, Kit, Live, alive, until, written

pytestmark = pytest.mark.skipif(not confine.may_switch(), reason="needs the right to become another user")

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def kit() -> Iterator[Kit]:
    """A home that others may pass: pytest's own folders are root's alone."""
    home = Path(tempfile.mkdtemp(dir="/tmp", prefix="run-as-"))
    home.chmod(PASSABLE)
    (home / "homes").mkdir()
    (home / "attempts").mkdir()
    found = Kit(home)
    try:
        yield found
    finally:
        found.finish()
        shutil.rmtree(home)


def user(kit: Kit, task: str = "task") -> dict[str, Any]:
    home = f"{kit.home}/homes/project/{task}"
    return {
        "run_as": RunAs(NOBODY.pw_uid, NOBODY.pw_gid, (NOBODY.pw_gid,), home),
        "cwd": home,
        "env": {"PATH": PATH, "HOME": home, "PYTHONUNBUFFERED": "1"},
    }


def python(source: str) -> ScriptBody:
    return ScriptBody((("python3",),), "main.py", source)


def test_is_that_user_and_nothing_else(kit: Kit) -> None:
    live = kit.run(
        python(
            "import os, pathlib, tempfile\n"
            "status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())\n"
            "print(os.getresuid(), os.getresgid(), os.getgroups())\n"
            "print(*(int(status[name], 16) for name in ('CapPrm', 'CapEff', 'CapInh', 'CapAmb')))\n"
            "print(status['NoNewPrivs'], os.getcwd() == os.environ['HOME'], oct(os.umask(0)))\n"
            "print(sorted(os.listdir('/proc/self/fd')))\n"
            "tempfile.mkstemp(); pathlib.Path('kept').touch(); open('/dev/stdout', 'a').write('by name\\n')\n"
        ),
        **user(kit),
    )
    uid, gid = NOBODY.pw_uid, NOBODY.pw_gid
    assert live.log.decode().splitlines() == [
        f"({uid}, {uid}, {uid}) ({gid}, {gid}, {gid}) [{gid}]", "0 0 0 0", "1 True 0o22", "['0', '1', '2', '3']",
        "by name",
    ]  # fmt: skip
    assert live.receipt().exit_code == 0
    home = Path(kit.home, "homes/project/task")
    assert (home.stat().st_uid, stat.S_IMODE(home.stat().st_mode)) == (uid, 0o700)
    assert (home / "kept").stat().st_uid == uid
    assert stat.S_IMODE(home.parent.stat().st_mode) == PASSABLE
    for path in (live.paths.log, live.spec.attempt_dir):
        assert os.stat(path).st_uid == os.geteuid()


def test_hooks_input_output_and_exit_codes(kit: Kit) -> None:
    live = kit.run(
        'test "$X" = "2 " && id -un && cat "$QINGLONG_INPUT" && echo "[7]" > "$QINGLONG_OUTPUT"; exit 9',
        before="export X='2 '; id -un",
        after="id -un; echo $QINGLONG_EXIT_CODE",
        input='{"a":1}',
        **user(kit),
    )
    assert live.log == b'nobody\nnobody\n{"a":1}nobody\n9\n'
    assert live.receipt().exit_code == 9
    assert read_left(Path(live.spec.attempt_dir)).output == [7]
    without = kit.run('cat "$QINGLONG_INPUT"', **user(kit))
    assert (without.receipt().exit_code, without.log) == (0, b"{}")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("nothing-of-that-name",), 127, "not found on PATH"),
        (("{secret}/inside",), 127, "no such file"),
        (("/etc/passwd",), 126, "not executable"),
    ],
)
def test_what_cannot_start_says_so_and_no_more_than_the_user_may_know(
    kit: Kit, argv: tuple[str, ...], code: int, said: str
) -> None:
    secret = kit.home / "secret"
    secret.mkdir(mode=0o700)
    (secret / "inside").write_text("#!/bin/sh\necho stolen\n")
    (secret / "inside").chmod(0o755)
    live = kit.run(CommandBody(tuple(part.format(secret=secret) for part in argv)), **user(kit))
    assert live.receipt().exit_code == code and said.encode() in live.log


def test_a_working_folder_that_the_user_may_not_enter(kit: Kit) -> None:
    (kit.home / "secret" / "open").mkdir(parents=True)
    (kit.home / "secret").chmod(0o700)
    live = kit.run("pwd; ls", **{**user(kit), "cwd": f"{kit.home}/secret/open"})
    assert live.receipt().exit_code == 126
    assert live.log == b"qinglong: the working folder cannot be used: Permission denied\n"
    below = kit.run("pwd", **{**user(kit), "cwd": f"{kit.home}/homes/project/task/a/b"})
    assert below.log == f"{kit.home}/homes/project/task/a/b\n".encode()
    trap = Path(kit.home, "homes/project/task/trap")
    trap.symlink_to(kit.home / "secret")
    assert kit.run("true", **{**user(kit), "cwd": f"{trap}/c"}).receipt().exit_code == 126
    assert not (kit.home / "secret" / "c").exists()


HOSTILE = """
import ctypes, glob, os, signal, socket, sys
shim, session, home, attempt, launcher = sys.argv[1:6]
found = []
def tried(name, act):
    try:
        act()
    except (OSError, ValueError) as error:
        return
    found.append(name)
def must(result):
    if result:
        raise OSError
libc = ctypes.CDLL(None)
for name, pid in (("shim", shim), ("session", session), ("launcher", launcher), ("init", "1")):
    for file in ("environ", "mem", "maps", "auxv", "stack"):
        tried(f"{name} {file}", lambda: open(f"/proc/{pid}/{file}", "rb").read(1))
    for folder in ("fd", "map_files"):
        tried(f"{name} {folder}", lambda: os.listdir(f"/proc/{pid}/{folder}"))
    for link in ("cwd", "exe", "root"):
        tried(f"{name} {link}", lambda: os.readlink(f"/proc/{pid}/{link}"))
    tried(f"{name} ptrace", lambda: must(libc.ptrace(16, int(pid), 0, 0)))
    for number in (0, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):  # SIGCONT is free within a session, and harmless
        tried(f"{name} signal {number}", lambda: os.kill(int(pid), number))
    tried(f"{name} limits", lambda: must(libc.prlimit(int(pid), 7, (ctypes.c_ulong * 2)(3, 3), None)))
for path in (home, f"{home}/node", f"{home}/logs", f"{home}/receipts", attempt):
    tried(f"list {path}", lambda: os.listdir(path))
    tried(f"write {path}", lambda: open(f"{path}/planted", "w"))
    tried(f"rename {path}", lambda: os.rename(path, f"{path}.moved"))
for path in glob.glob(f"{attempt}/*") + [f"{attempt}/{name}" for name in ("stop.json", "output.json", "log.json")]:
    tried(f"write {path}", lambda: open(path, "w"))
    tried(f"remove {path}", lambda: os.unlink(path))
tried("swap the folder", lambda: os.rename(f"{attempt}/work", f"{attempt}/gone"))
tried("socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(f"{home}/node/launcher.sock"))
tried("lock", lambda: open(f"{home}/node/launcher.lock"))
for secret in sys.argv[6:]:
    tried(f"read {secret}", lambda: open(secret, "rb").read())
    tried(f"write {secret}", lambda: open(secret, "ab"))
    tried(f"link {secret}", lambda: os.link(secret, "linked"))
tried("root", lambda: os.setresuid(0, 0, 0))
tried("groups", lambda: os.setgroups([0]))
print(found)
"""


def test_a_hostile_script_reaches_nothing_of_the_panel(kit: Kit) -> None:
    secrets = [kit.home / name for name in ("keyring.json", "db.sqlite3", "secret_key", "setup")]
    for path in secrets:
        path.write_text("secret")
        path.chmod(0o600)
    other = kit.launch("true", input='{"its": "own"}', **user(kit, "other"))
    other.wait("ready")
    # A log, the reservation of a receipt, and what an attempt was given that has no `go` yet.
    secrets += [Path(other.paths.log), *(kit.home / "receipts").rglob("*.tmp")]
    secrets.append(Path(other.spec.attempt_dir, "input.json"))
    world = user(kit)
    world["attempt_dir"] = f"{kit.home}/attempts/hostile"
    # Its shim is the parent of its process.
    source = "import os, sys\nsys.argv.insert(1, str(os.getppid()))\n" + HOSTILE
    arguments = (str(os.getpid()), str(kit.home), world["attempt_dir"], str(kit.launcher_pid()))
    body = ScriptBody((("python3",),), "main.py", source, (*arguments, *map(str, secrets)))
    live = kit.run(body, **world)
    assert (live.receipt().exit_code, live.log) == (0, b"[]\n")
    assert all(path.exists() for path in secrets)
    assert other.shim.go() and other.end() == 0


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        ('ln -s "$SECRET" "$QINGLONG_OUTPUT"', "output_unsafe"),
        ('ln "$SECRET" "$QINGLONG_OUTPUT" || mkfifo "$QINGLONG_OUTPUT"', "output_unsafe"),
        ('mkdir "$QINGLONG_OUTPUT"', "output_unsafe"),
        ('head -c 70000 /dev/zero > "$QINGLONG_OUTPUT"', "output_too_large"),
        ('echo "{" > "$QINGLONG_OUTPUT"', "output_invalid"),
    ],
)
def test_an_output_that_is_something_else(kit: Kit, leave: str, code: str) -> None:
    secret = kit.home / "secret.json"
    secret.write_text('"secret"')
    world = user(kit)
    world["env"] = {**world["env"], "SECRET": str(secret)}
    live = kit.run(leave, **world)
    left = read_left(Path(live.spec.attempt_dir))
    assert (left.output_code, left.has_output) == (code, False)


def test_a_forged_stop_and_a_folder_that_looks_as_if_nothing_ran(kit: Kit) -> None:
    live = kit.run(
        'chmod 1700 "$TMPDIR" "$TMPDIR/.."; echo "{}" > "$TMPDIR/../stop.json"; rm -rf "$TMPDIR"', **user(kit)
    )
    folder = Path(live.spec.attempt_dir)
    assert not never_started(folder) and read_left(folder).cause is None
    assert stat.S_IMODE(folder.stat().st_mode) == PASSABLE


def test_cleaning_up_after_a_hostile_script_touches_nothing_else(kit: Kit) -> None:
    victim = kit.home / "victim"
    (victim / "deep").mkdir(parents=True)
    (victim / "deep" / "file").write_text("kept")
    victim.chmod(0o755)
    script = (
        'cd "$TMPDIR"; ln -s "$VICTIM" link; ln -s "$VICTIM/deep/file" file; mkfifo fifo; '
        'mkdir -p a/b/c locked/in; ln -s "$VICTIM" a/b/c/up; touch locked/in/x; chmod 0 locked'
    )
    world = user(kit)
    world["env"] = {**world["env"], "VICTIM": str(victim)}
    live = kit.run(script, **world)
    folder = Path(live.spec.attempt_dir)
    # Somebody of the same user swaps what is being removed, as fast as it can.
    racer = kit.launch(
        'while :; do for one in "$RACED"/*; do mv "$one" "$one.x"; ln -s "$VICTIM" "$one"; done; done 2>/dev/null',
        **{**world, "env": {**world["env"], "RACED": f"{folder}/work"}},
    ).go()
    racer.wait("started")
    remove_folder(folder)
    racer.shim.stop()
    racer.end()
    remove_folder(folder)
    assert not folder.exists()
    assert (victim / "deep" / "file").read_text() == "kept" and stat.S_IMODE(victim.stat().st_mode) == 0o755


def test_stopped_tree_and_cleaning_before_go(kit: Kit) -> None:
    live = kit.launch(
        "trap '' TERM; sleep 60 & setsid sleep 60 & echo up; wait", grace_ms=100, **user(kit)
    ).go()
    until(lambda: live.log == b"up\n", "the script")
    pid = live.wait("started").pid
    live.shim.stop()
    assert live.end() == 128 + 9
    stopped = read_left(Path(live.spec.attempt_dir))
    assert stopped.cause == "stop" and stopped.proof is not None and stopped.proof["escaped"] == []
    assert not alive(pid)
    never = kit.launch("true", input="{}", **user(kit))
    never.wait("ready")
    assert never_started(Path(never.spec.attempt_dir)) is False  # its shim holds it
    never.shim.stop()
    until(lambda: never.shim.receive() or never.shim.closed, "the refusal")
    until(lambda: not never.traces(), "nothing to be left")


def test_a_folder_of_a_task_is_handed_over_with_what_is_its_own(kit: Kit) -> None:
    home = kit.home / "homes" / "project" / "task"
    (home / "data").mkdir(parents=True)
    (home / "data" / "file").write_text("1")
    (home / "data" / "foreign").write_text("2")
    os.chown(home / "data" / "foreign", 12345, 12345)
    secret = kit.home / "keyring.json"
    secret.write_text("secret")
    secret.chmod(0o600)
    os.link(secret, home / "linked")
    (home / "symlink").symlink_to(secret)
    home.parent.chmod(0o700)
    live = kit.run("echo 2 > data/file; touch data/new; rm linked", **user(kit))
    assert live.receipt().exit_code == 0, live.log
    assert {(home / "data" / name).stat().st_uid for name in ("file", "new")} == {NOBODY.pw_uid}
    assert (home / "data" / "foreign").stat().st_uid == 12345
    assert (secret.stat().st_uid, secret.read_text()) == (os.geteuid(), "secret")
    kept = os.stat(home / "data" / "foreign").st_ctime_ns
    kit.run("true", **user(kit))
    assert os.stat(home / "data" / "foreign").st_ctime_ns == kept


def test_the_next_run_of_a_warm_shim_has_its_own_user(kit: Kit) -> None:
    live = kit.launch("id -u", **user(kit)).go()
    first = live.wait("ended")
    assert first.warm
    kit.launcher.keep(live.shim)
    kit.launcher._warm[-1].receive()
    second = kit.launch("id -u; ulimit -n")
    assert second.shim is live.shim
    second.go()
    assert second.end() == 0
    assert second.log.split()[0] == str(os.geteuid()).encode()


@pytest.mark.skipif("processes" in cgroups.kept()[1], reason="control groups count them here")
def test_processes_are_counted_for_the_user_where_there_are_no_groups(kit: Kit) -> None:
    source = "import os\nfor n in range(9):\n  if not os.fork():\n    import time; time.sleep(9)"
    live = kit.run(python(source), limits=Limits(processes=4), **user(kit))
    assert b"counts all scripts of the same user" in live.log and b"BlockingIOError" in live.log


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to give a right away")
def test_without_the_right_nothing_is_started(kit: Kit) -> None:
    """A launcher of somebody who may not switch: here one that was given no capabilities."""
    command = [sys.executable, "-I", "-S", str(client._PROGRAM), "--node-dir", str(kit.node), "--detach"]
    subprocess.run(["setpriv", "--bounding-set=-setuid", "--inh-caps=-setuid", *command], env={}, check=True)
    live = kit.launch("id -u", **user(kit))
    until(lambda: _hear(live), "the refusal")
    assert [message.code for message in live.messages if message.state == "failed"] == [
        "run_as_not_permitted"
    ]
    assert live.traces() == []


def _hear(live: Live) -> bool:
    live.messages += live.shim.receive()
    return any(message.state == "failed" for message in live.messages)


def test_the_specification_holds_no_root(kit: Kit) -> None:
    spec = json.loads(kit.spec("true", **user(kit)).encode())
    for wrong in ({"uid": 0}, {"gid": -1}, {"groups": [True]}, {"home": "/a/../b"}, {"more": 1}):
        with pytest.raises(SpecError):
            parse(written({**spec, "run_as": {**spec["run_as"], **wrong}}))


def test_a_folder_that_is_changed_while_it_is_handed_over(kit: Kit) -> None:
    """Its last user's process swaps what is in it for names of somebody else's files, as fast as it can."""
    secret = kit.home / "keyring.json"
    secret.write_text("secret")
    secret.chmod(0o600)
    before = secret.stat()
    racer = kit.launch(
        'echo 1 > swapped; while :; do ln -f "$SECRET" swapped; echo 1 > new; mv new swapped; '
        'ln -sfn "$ELSEWHERE" folder; rm folder; mkdir folder; touch folder/x; rm -r folder; done 2>/dev/null',
        **{
            **(world := user(kit)),
            "env": {**world["env"], "SECRET": str(secret), "ELSEWHERE": str(kit.home / "logs")},
        },
    ).go()
    racer.wait("started")
    elsewhere = (kit.home / "logs").stat()
    others = [RunAs(pwd.getpwnam(name).pw_uid, 1, (), world["run_as"].home) for name in ("daemon", "nobody")]
    for _ in range(150):
        for other in others:
            homes.make(other)
    racer.shim.stop()
    racer.end()
    for path, was in ((secret, before), (kit.home / "logs", elsewhere)):
        now = path.stat()
        assert (now.st_uid, now.st_gid, now.st_mode) == (was.st_uid, was.st_gid, was.st_mode)


def test_a_secret_by_file_is_that_users_and_goes_with_the_run(kit: Kit) -> None:
    """Only that user reads it, the folder around it stays ours, and what the script does to it keeps nothing alive."""
    live = kit.run(
        python(
            "import os, stat\n"
            "path = os.environ['KEY_FILE']\n"
            "folder = os.path.dirname(path)\n"
            "seen, around = os.stat(path), os.stat(folder)\n"
            "print(open(path).read(), oct(stat.S_IMODE(seen.st_mode)), seen.st_uid == os.getuid())\n"
            "print(oct(stat.S_IMODE(around.st_mode)), around.st_uid == os.getuid(), os.access(folder, os.W_OK))\n"
            "try:\n"
            "    os.rename(path, folder + '/kept')\n"
            "except PermissionError:\n"
            "    print('refused')\n"
        ),
        secret_files=(("KEY_FILE", "by-file-and-not-otherwise"),),
        **user(kit),
    )
    assert live.log.decode().splitlines() == [
        "by-file-and-not-otherwise 0o600 True",
        "0o711 False False",
        "refused",
    ]
    folder = Path(live.spec.attempt_dir)
    assert not list((folder / "secrets").iterdir())
    remove_folder(folder)
    assert not folder.exists()
