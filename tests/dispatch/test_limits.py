"""Limits as a script meets them, and what is said where a machine cannot keep them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.dispatch.carried import read_left
from apps.dispatch.launcher import cgroups
from apps.dispatch.launcher.cgroups import Group
from apps.dispatch.launcher.confine import Confinement, weaker
from apps.dispatch.launcher.spec import Limits, ScriptBody
from tests.dispatch.shim_kit import Kit, until

HELD = cgroups.kept()[1]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    found = Kit(tmp_path)
    yield found
    found.finish()


def python(source: str) -> ScriptBody:
    return ScriptBody((("python3",),), "main.py", source)


def test_processor_time_ends_a_script_and_is_named(kit: Kit) -> None:
    live = kit.run(python("while True: pass"), limits=Limits(cpu_seconds=1))
    assert live.receipt().exit_code == 128 + 24
    assert live.log == b"qinglong: the limit cpu_seconds was met\n"
    left = read_left(Path(live.spec.attempt_dir))
    assert (left.cause, left.limit, left.proof) == ("limit", "cpu_seconds", None)


def test_a_kill_of_its_own_is_not_taken_for_a_limit(kit: Kit) -> None:
    live = kit.run("kill -KILL $$", limits=Limits(cpu_seconds=1))
    assert live.receipt().exit_code == 128 + 9
    assert (live.log, read_left(Path(live.spec.attempt_dir)).limit) == (b"", None)


@pytest.mark.skipif("memory_bytes" in HELD, reason="control groups keep it here")
def test_memory_without_control_groups_is_of_each_process(kit: Kit) -> None:
    live = kit.run(python("print(len(bytearray(200 << 20)))"), limits=Limits(memory_bytes=128 << 20))
    first, *rest = live.log.decode().splitlines()
    assert first == (
        "qinglong: this node holds each process to memory_bytes, not all of them together: no control group"
    )
    assert rest[-1] == "MemoryError" and live.receipt().exit_code == 1


@pytest.mark.skipif("memory_bytes" not in HELD, reason="no control groups to write on this machine")
def test_memory_in_a_control_group_is_of_all_together(kit: Kit) -> None:
    source = "import os, time\nchild = os.fork()\nx = bytearray(60 << 20)\ntime.sleep(5)\nif child: os.wait()"
    live = kit.run(python(source), limits=Limits(memory_bytes=100 << 20))
    assert live.receipt().exit_code != 0 and read_left(Path(live.spec.attempt_dir)).limit == "memory_bytes"
    base = cgroups.kept()[0]
    assert not [name for name in os.listdir(base) if name.startswith("run-")]


@pytest.mark.skipif("processes" not in HELD, reason="no control groups to write on this machine")
def test_processes_in_a_control_group_are_counted_together(kit: Kit) -> None:
    source = (
        "import subprocess\nmade = []\n"
        "try:\n    while len(made) < 40: made.append(subprocess.Popen(['sleep', '60']))\n"
        "except BlockingIOError: print(len(made) < 10, flush=True)\n"
        "for one in made: one.kill()\n"
        "raise SystemExit(3)"
    )
    live = kit.run(python(source), limits=Limits(processes=10))
    assert live.receipt().exit_code == 3
    assert live.log == b"True\nqinglong: the limit processes was met\n"


@pytest.mark.skipif("cpu_percent" not in HELD, reason="no control groups to write on this machine")
def test_a_share_of_a_processor_in_a_control_group(kit: Kit) -> None:
    source = (
        "import time\nend, spent = time.monotonic() + 3, time.process_time()\n"
        "while time.monotonic() < end: pass\nprint(time.process_time() - spent < 1.2)"
    )
    live = kit.run(python(source), limits=Limits(cpu_percent=20))
    assert live.log == b"True\n"


def test_open_files(kit: Kit) -> None:
    live = kit.run("ulimit -n; ulimit -t", limits=Limits(open_files=32, cpu_seconds=7))
    assert live.log == b"32\n7\n"


def test_the_next_run_of_a_warm_shim_has_no_limits(kit: Kit) -> None:
    live = kit.launch("ulimit -n", limits=Limits(open_files=32)).go()
    assert live.wait("ended").warm
    kit.launcher.keep(live.shim)
    second = kit.launch("ulimit -n; ulimit -t").go()
    assert second.shim is live.shim and second.end() == 0
    unlimited = kit.run("ulimit -n; ulimit -t")
    assert second.log == unlimited.log != b"32\n"


def test_what_a_node_cannot_keep_is_said() -> None:
    every = Limits(cpu_seconds=1, cpu_percent=50, memory_bytes=1, processes=1, open_files=1)
    assert [line.split(":")[0] for line in weaker(every, frozenset(), False)] == [
        "this node cannot hold it to cpu_percent",
        "this node holds each process to memory_bytes, not all of them together",
        "this node cannot hold it to processes",
    ]
    assert weaker(every, frozenset(cgroups.CONTROLLERS.values()), False) == []
    assert weaker(Limits(cpu_seconds=1, open_files=1), frozenset(), True) == []


def test_who_does_not_heed_the_first_word_is_killed_and_that_is_named_too(kit: Kit) -> None:
    source = (
        "import resource, signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass"  # not the usual 5 s later
    )
    live = kit.run(python(source), limits=Limits(cpu_seconds=1))
    assert live.receipt().exit_code == 128 + 9
    assert read_left(Path(live.spec.attempt_dir)).limit == "cpu_seconds"


def unified() -> Path | None:
    """Where this machine has control groups of version 2 that may be written, with or without controllers."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _dash, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2" and os.access(path := place.split()[4], os.W_OK):
            return Path(path)
    return None


@pytest.mark.skipif(unified() is None, reason="no control groups of version 2 to write on this machine")
def test_a_group_holds_all_that_a_script_starts_and_goes_with_it(tmp_path: Path) -> None:
    base = unified()
    assert base is not None
    group = Group(str(base), f"test-{os.getpid()}")
    folder = base / f"run-test-{os.getpid()}"
    folder.mkdir()
    try:
        with (tmp_path / "output").open("wb") as output:
            confinement = Confinement(None, None, group, os.fsencode(tmp_path))
            find = (b"/bin/sh", [b"sh", b"-c", b"setsid sleep 60 & pwd; cat /proc/self/cgroup; sleep 60"])
            pid = confinement.start(lambda: find, {b"PATH": b"/usr/bin:/bin"}, output.fileno())
        until(lambda: (tmp_path / "output").read_text().endswith(f"0::/{folder.name}\n"), "its word")
        until(lambda: len((folder / "cgroup.procs").read_text().split()) == 3, "all three to be in it")
        assert group.reached() is None
        group.kill()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
        said = (tmp_path / "output").read_text()
        assert said.startswith(f"{tmp_path}\n") and f"0::/{folder.name}\n" in said
    finally:
        group.kill()
        group.remove()
    assert not folder.exists()


def test_limits_that_cannot_be_entered_run_nothing(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as output:
        confinement = Confinement(None, None, Group(str(tmp_path), "gone"), os.fsencode(tmp_path))
        find = (b"/bin/sh", [b"sh", b"-c", b"echo ran"])
        pid = confinement.start(lambda: find, {}, output.fileno())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 126
    assert (tmp_path / "output").read_text() == (
        "qinglong: the script cannot be confined as asked: No such file or directory\n"
    )


def test_groups_are_got_ready_only_where_nobody_else_lives(tmp_path: Path) -> None:
    """On plain files, since few machines let a test have controllers: what would be written, and where."""
    for name, text in (
        ("cgroup.controllers", "cpu io memory pids"),
        ("cgroup.type", "domain"),
        ("cgroup.procs", "1\n"),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "cgroup.subtree_control").touch()
    (tmp_path / "run-left").mkdir()
    here = next(
        line[4:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::/")
    )
    if here:
        pytest.skip("this process is not at the top of its hierarchy")
    cgroups.delegate(str(tmp_path))
    assert not (tmp_path / "panel").exists() and (tmp_path / "run-left").exists()
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    cgroups.delegate(str(tmp_path))
    assert (tmp_path / "panel").is_dir() and not (tmp_path / "run-left").exists()
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert cgroups.kept(root=str(tmp_path)) == (str(tmp_path), frozenset(cgroups.CONTROLLERS.values()))
