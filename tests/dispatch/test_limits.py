"""Limits as a script meets them, and what is said where a machine cannot keep them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.dispatch.carried import read_left
from apps.dispatch.launcher import cgroups
from apps.dispatch.launcher.confine import weaker
from apps.dispatch.launcher.spec import Limits, ScriptBody
from tests.dispatch.shim_kit import Kit

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
    source = "import os\nif os.fork(): os.wait()\nx = bytearray(60 << 20)\nimport time; time.sleep(5)"
    live = kit.run(python(source), limits=Limits(memory_bytes=100 << 20))
    assert live.receipt().exit_code != 0 and read_left(Path(live.spec.attempt_dir)).limit == "memory_bytes"
    base = cgroups.kept()[0]
    assert not [name for name in os.listdir(base) if name.startswith("run-")]


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
