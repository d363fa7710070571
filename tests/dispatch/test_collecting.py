"""Files that a script leaves in QINGLONG_ARTIFACTS: what its shim takes over, what it leaves out and says."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import collected
from apps.artifacts.collected import Collected, folder_of, read_manifest
from apps.artifacts.facts import UnsafeTarget
from apps.dispatch.launcher import collecting, confine
from apps.dispatch.launcher.homes import PASSABLE
from apps.dispatch.launcher.spec import RunAs
from tests.dispatch import shim_kit
from tests.dispatch.shim_kit import PATH, Kit, Live

MINE = "cd $QINGLONG_ARTIFACTS; "


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    found = Kit(tmp_path)
    yield found
    found.finish()


def files(live: Live) -> tuple[Collected, ...]:
    spec = live.spec
    return read_manifest(spec.log.root, spec.log.artifact_id, spec.run_id, spec.attempt_id)


def folder(live: Live) -> Path:
    return Path(folder_of(live.spec.log.root, live.spec.log.artifact_id))


def told(live: Live) -> Any:
    """What the stop fact says of files."""
    fact = live.fact("stop.json")
    return None if fact is None else fact.get("files")


def left_out(live: Live) -> Any:
    return told(live)["left_out"]


def test_type_size_and_digest(kit: Kit) -> None:
    live = kit.run(
        MINE
        + "printf 'a,b\\n' > table.csv; mkdir -p deep/er; printf '\\211PNG\\r\\n\\032\\n' > deep/er/p.html;"
        "printf '<script>' > page.html; printf '\\000' > 报告; : > empty.json; exit 3"
    )
    assert live.receipt().exit_code == 3
    assert [(one.name, one.size, one.content_type) for one in files(live)] == [
        ("deep/er/p.html", 8, "image/png"),
        ("empty.json", 0, "application/json"),
        ("page.html", 8, "text/plain"),
        ("table.csv", 4, "text/csv"),
        ("报告", 1, "application/octet-stream"),
    ]
    for number, one in enumerate(files(live), 1):
        path = folder(live) / str(number)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == one.sha256
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder(live).stat().st_mode) == 0o700
    assert told(live) == {"kept": 5, "bytes": 21, "left_out": {}}
    assert live.log == b""


def test_they_are_moved_not_copied(kit: Kit) -> None:
    live = kit.run(MINE + "echo x > x; stat -c %i x; touch -d @1000000000 x")
    moved = (folder(live) / "1").stat()
    assert (moved.st_ino, moved.st_mtime) == (int(live.log), 1_000_000_000)


@pytest.mark.parametrize("leave", ["", MINE + "echo x > x; rm x; exit 0", 'rm -r "$QINGLONG_ARTIFACTS"'])
def test_nothing_left_leaves_nothing(kit: Kit, leave: str) -> None:
    live = kit.run(leave or "true")
    assert not folder(live).exists()
    assert live.fact("stop.json") is None
    assert not Path(live.spec.attempt_dir, "artifacts").exists()
    assert {"local-"} == {path.name.lstrip(".")[:6] for path in folder(live).parent.iterdir()}


def test_links_devices_and_second_names_stay_behind(kit: Kit) -> None:
    secret = kit.home / "secret"
    secret.write_text("s")
    made = "; mknod null c 1 3" if os.geteuid() == 0 else ""
    live = kit.run(
        MINE + f"ln -s {secret} link; ln -s / folder; ln {secret} hard; mkfifo pipe; echo x > fine{made}"
    )
    assert [one.name for one in files(live)] == ["fine"]
    assert left_out(live) == {"symlink": 2, "hard_link": 1, "special": 2 if made else 1}
    assert b"left in QINGLONG_ARTIFACTS: 2 links (symlink)\n" in live.log
    assert secret.read_text() == "s"
    assert secret.stat().st_nlink == 2


@pytest.mark.parametrize("instead", ['ln -s "$HOME" "$QINGLONG_ARTIFACTS"', 'echo x > "$QINGLONG_ARTIFACTS"'])
def test_something_else_in_place_of_the_folder(kit: Kit, instead: str) -> None:
    (kit.home / "home").mkdir()
    (kit.home / "home" / "diary").write_text("x")
    live = kit.run(f'rmdir "$QINGLONG_ARTIFACTS"; {instead}')
    assert left_out(live) == {"special": 1}
    assert not folder(live).exists()
    assert (kit.home / "home" / "diary").read_text() == "x"


def test_names_are_made_safe(kit: Kit) -> None:
    live = kit.run(
        MINE
        + "printf 1 > \"$(printf 'a\\nb')\"; printf 22 > 'a\\b'; printf 333 > \"$(printf 'x\\342\\200\\256y')\";"
        "printf 4444 > \"$(printf 'z\\377')\"; n=$(printf 'd%.0s' $(seq 200)); mkdir $n; printf 55555 > $n/$n"
    )
    assert sorted((one.name, one.size) for one in files(live)) == [
        ("a_b", 1), ("a_b~2", 2), ("x_y", 3), ("z_", 4)
    ]  # fmt: skip
    assert left_out(live) == {"name_too_long": 1}


def test_what_is_too_much_is_counted(kit: Kit) -> None:
    live = kit.run(
        MINE + "truncate -s 1T a-hole; head -c 300 /dev/zero > b; truncate -s 268435200 c; truncate -s 256 d;"
        "mkdir -p 1/2/3/4/5/6/7/8/9; touch 1/2/3/4/5/6/7/8/deep 1/2/3/4/5/6/7/8/9/deeper"
    )
    assert [(one.name, one.size) for one in files(live)] == [
        ("1/2/3/4/5/6/7/8/deep", 0), ("b", 300), ("d", 256)
    ]  # fmt: skip
    assert left_out(live) == {"too_large": 2, "too_deep": 1}
    live = kit.run(MINE + "touch $(seq 1000 1119)")
    assert [one.name for one in files(live)] == [str(number) for number in range(1000, 1100)]
    assert left_out(live) == {"too_many": 20}


def test_very_many_files_are_not_all_looked_at(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_kit, "PATIENCE_S", 240.0)  # a busy disk takes long to make them
    live = kit.run(MINE + "seq 1 3000 | xargs touch", grace_ms=0)
    assert len(files(live)) == 100
    assert left_out(live) == {"unexamined": 1, "too_many": 1_900}
    assert len(list(Path(live.spec.attempt_dir, "artifacts").iterdir())) == 2_900  # they go with the folder
    assert b"not looked at after 2000 entries" in live.log


def test_what_is_still_written_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By something that got away; here between the look at the file and the end of its reading."""
    kit = Kit(tmp_path)
    spec = kit.spec("true")
    source = tmp_path / "left"
    source.mkdir()
    (source / "growing").write_bytes(b"x" * 1000)
    Path(folder_of(spec.log.root, spec.log.artifact_id)).parent.mkdir(parents=True)
    real = os.pread

    def grow(descriptor: int, count: int, at: int) -> bytes:
        os.truncate(f"/proc/self/fd/{descriptor}", 10 if at == 0 else 0)
        return real(descriptor, count, at)

    monkeypatch.setattr(os, "pread", grow)
    found = collecting.collect(spec, str(source), bytes)
    assert (found.files, found.left_out) == ((), {"changed": 1})


def test_a_disk_without_room_for_the_manifest_loses_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(tmp_path)
    spec = kit.spec("true")
    source = tmp_path / "left"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_bytes(b"x")
    place = Path(folder_of(spec.log.root, spec.log.artifact_id))
    place.parent.mkdir(parents=True)

    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collected, "write_all", full)
    found = collecting.collect(spec, str(source), bytes)
    assert (found.files, found.left_out) == ((), {"no_space": 2})
    assert not place.exists()


def test_from_another_file_system_they_are_copied(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir=other) as home:
        kit = Kit(tmp_path)
        spec = kit.spec("true")
        (Path(home) / "a").write_bytes(b"x" * 300_000)
        (Path(home) / "l").symlink_to("/etc/passwd")
        Path(folder_of(spec.log.root, spec.log.artifact_id)).parent.mkdir(parents=True)
        found = collecting.collect(spec, home, bytes)
    assert [(one.name, one.size) for one in found.files] == [("a", 300_000)]
    assert found.files[0].sha256 == hashlib.sha256(b"x" * 300_000).hexdigest()
    assert found.left_out == {"symlink": 1}


def test_a_stopped_run_keeps_its_files_and_its_proof(kit: Kit) -> None:
    live = kit.launch(MINE + "echo half > result; echo ready; sleep 60").go()
    while live.log != b"ready\n":
        time.sleep(0.01)
    live.shim.stop()
    live.end()
    fact = live.fact("stop.json")
    assert fact is not None
    assert (fact["cause"], fact["files"]["kept"]) == ("stop", 1)


def test_only_the_panels_own_files_are_removed(kit: Kit) -> None:
    live = kit.run(MINE + "echo x > x; echo y > y")
    where = (live.spec.log.root, live.spec.log.artifact_id)
    (folder(live) / "strange").write_bytes(b"")
    with pytest.raises(UnsafeTarget):
        collected.look(*where)
    assert len(files(live)) == 2
    (folder(live) / "strange").unlink()
    found = collected.look(*where)
    assert found.bytes == 4 + (folder(live) / "manifest.json").stat().st_size
    (folder(live) / "2").unlink()  # as if somebody else were at it too
    assert collected.remove(found)
    assert not folder(live).exists()
    assert not collected.remove(found)
    assert not collected.remove(collected.look(*where))


# -- under a user of their own -----------------------------------------------------------------------------

other_user = pytest.mark.skipif(not confine.may_switch(), reason="needs the right to become another user")
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def shared() -> Iterator[Kit]:
    """A home that others may pass: pytest's own folders are root's alone."""
    home = Path(tempfile.mkdtemp(dir="/tmp", prefix="collecting-"))
    home.chmod(PASSABLE)
    (home / "homes").mkdir()
    (home / "attempts").mkdir()
    found = Kit(home)
    try:
        yield found
    finally:
        found.finish()
        shutil.rmtree(home)


def _as_nobody(kit: Kit) -> dict[str, Any]:
    home = f"{kit.home}/homes/project/task"
    return {
        "run_as": RunAs(NOBODY.pw_uid, NOBODY.pw_gid, (NOBODY.pw_gid,), home),
        "cwd": home,
        "env": {"PATH": PATH, "HOME": home},
    }


@other_user
def test_files_of_another_user_become_the_panels(shared: Kit) -> None:
    live = shared.run(
        'stat -c "%U %a" $QINGLONG_ARTIFACTS; cd $QINGLONG_ARTIFACTS; echo x > x; chmod 4777 x; stat -c %i x',
        **_as_nobody(shared),
    )
    lines = live.log.decode().split("\n")
    assert lines[0] == "nobody 700"
    found = (folder(live) / "1").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode), found.st_ino) == (os.geteuid(), 0o600, int(lines[1]))


@other_user
def test_who_has_it_open_changes_a_copy_nobody_reads(shared: Kit) -> None:
    """A process of the same user, not of this run, holds the file open for writing."""
    live = shared.launch(
        "cd $QINGLONG_ARTIFACTS; echo true > x; echo ready; until test -e $HOME/held; do sleep 0.01; done",
        **_as_nobody(shared),
    ).go()
    while live.log != b"ready\n":
        time.sleep(0.01)
    path = Path(live.spec.attempt_dir, "work", "artifacts", "x")
    with path.open("r+b") as held:
        before = path.stat().st_ino
        Path(f"{shared.home}/homes/project/task/held").touch()
        live.end()
        held.write(b"lies")
        held.flush()
        assert (folder(live) / "1").read_bytes() == b"true\n"
        assert (folder(live) / "1").stat().st_ino != before
    assert files(live)[0].sha256 == hashlib.sha256(b"true\n").hexdigest()


@other_user
def test_nothing_of_others_can_be_had_that_way(shared: Kit) -> None:
    secret = shared.home / "secret"
    secret.write_text("s")
    live = shared.launch(
        "cd $QINGLONG_ARTIFACTS; echo ready; until test -e stolen; do sleep 0.01; done; ln -s ../.. up",
        **_as_nobody(shared),
    ).go()
    while live.log != b"ready\n":
        time.sleep(0.01)
    # As where hard links are not protected.
    os.link(secret, Path(live.spec.attempt_dir, "work", "artifacts", "stolen"))
    live.end()
    assert left_out(live) == {"foreign": 1, "symlink": 1}
    assert files(live) == ()
    assert secret.stat().st_uid == 0


@other_user
def test_names_that_change_under_the_taker(shared: Kit) -> None:
    """A process of the same user swaps files for links, folders and back while they are taken."""
    spec = shared.spec("true", **_as_nobody(shared))
    source = Path(spec.attempt_dir, "left")
    source.mkdir(parents=True)
    shared.home.chmod(0o711)
    source.parent.parent.chmod(0o711)
    source.parent.chmod(0o711)
    os.chown(source, NOBODY.pw_uid, NOBODY.pw_gid)
    Path(folder_of(spec.log.root, spec.log.artifact_id)).parent.mkdir(parents=True)
    swap = (
        f"cd {source}; while :; do for n in a b c d; do echo x > $n; mv -T $n $n.o; ln -s /etc/shadow $n; rm $n;"
        "mkdir -p $n/full; rm -r $n $n.o; done; done"
    )
    hostile = subprocess.Popen(["/bin/sh", "-c", swap], user=NOBODY.pw_uid, stderr=subprocess.DEVNULL)
    try:
        for _round in range(60):
            found = collecting.collect(spec, str(source), bytes)
            assert {one.sha256 for one in found.files} <= {
                hashlib.sha256(text).hexdigest() for text in (b"x\n", b"")
            }
            where = (spec.log.root, spec.log.artifact_id)
            assert collected.look(*where).present == bool(found.files)
            collected.remove(collected.look(*where))
    finally:
        hostile.kill()
        hostile.wait()


def test_a_warm_shim_hands_its_empty_folder_on(kit: Kit) -> None:
    first = kit.launch("stat -c %i $QINGLONG_ARTIFACTS").go()
    first.receipt()
    assert first.wait("ended").warm
    assert not Path(first.spec.attempt_dir, "artifacts").exists()
    inode = int(first.log)
    for script, left in (
        ("stat -c %i $QINGLONG_ARTIFACTS", 0),
        ("stat -c '%i %a' $QINGLONG_ARTIFACTS; chmod 755 $QINGLONG_ARTIFACTS", 0),
        ("stat -c '%i %a' $QINGLONG_ARTIFACTS; echo x > $QINGLONG_ARTIFACTS/x", 1),
    ):  # fmt: skip
        spec = kit.spec(script)
        live = Live(kit, spec, first.shim)
        assert first.shim.again(spec.encode())
        assert first.shim.go()
        live.receipt()
        assert len(files(live)) == left
        if script.startswith("stat -c %i"):
            assert int(live.log) == inode
        else:
            assert live.log.split()[1] == b"700"
    assert not [path.name for path in kit.home.iterdir() if path.name.startswith(".spare")]


def test_what_was_put_by_goes_with_the_shim(kit: Kit) -> None:
    live = kit.run("true")
    assert live.messages[-1].warm
    assert not [path.name for path in kit.home.iterdir() if path.name.startswith(".spare")]
