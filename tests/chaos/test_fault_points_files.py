"""A process dies at every step at which what a script left is taken over, and where it is put on record.

A run has all of its files, on record and on disk, also where it is lost; only their names may have gone with a shim.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings

from apps.artifacts import collected
from apps.artifacts.models import Artifact
from apps.runs.models import Run
from apps.tasks.models import Task
from tests.chaos.test_fault_points import Node, node, sessions  # noqa: F401
from tests.dispatch.conftest import home  # noqa: F401
from tests.runs import kit

# From the end of the script to the receipt, for two files; what comes before and after is the same for all runs.
SHIM = [
    "rmdir folder", "mkdir files",
    "rename files", "chmod files", "fsync files", "rename files 2", "chmod files 2", "fsync files 2",
    "open files", "write files", "fsync files 3", "rename files 3", "fsync files 4",
    "unlink folder", "open folder", "write folder", "fsync folder", "rename folder", "fsync folder 2", "link receipt",
]  # fmt: skip
SESSION = ["before commit of an end", "after commit of an end", "before removing the folder"]


def _task(node: Node) -> Task:  # noqa: F811
    shell = f'echo "$QINGLONG_RUN_ID" >> {node.home.path}/ran; cd $QINGLONG_ARTIFACTS; echo x > a; echo y > b'
    return kit.task("leaves", concurrency="parallel", max_parallel=64, shell=shell)


def _found(run: Run) -> collected.Removable:
    artifact = kit.attempt_of(run).log_artifact_id
    assert artifact is not None
    return collected.look(str(settings.LOG_ROOT), artifact)


def _check_files(run: Run, point: str) -> None:
    rows = list(Artifact.objects.filter(run=run).order_by("position").values_list("name", "position"))
    assert rows == [("a", 1), ("b", 2)], point
    assert sorted(_found(run).names) == ["1", "2", "manifest.json"], point


def test_every_step_is_known(node: Node) -> None:  # noqa: F811
    kit.run_of(_task(node))
    node.arm("record")
    assert node.run() == "idle"
    steps = (node.home.path / "steps").read_text().splitlines()
    kept = [step for step in steps if "files" in step or "folder" in step or step == "link receipt"]
    assert kept[kept.index("rmdir folder") :] == SHIM


@pytest.mark.parametrize("half", [0, 1])
def test_a_shim_dies_that_takes_files_over(node: Node, half: int) -> None:  # noqa: F811
    task = _task(node)
    for point in SHIM[half::2]:
        run = kit.run_of(task)
        node.arm(point)
        assert node.run() == "idle"
        assert not (node.home.path / "fault").exists(), f"never came to {point}"
        node.check(run, point, lost=True, attempts=(1,))
        for _again in range(5):
            if Artifact.objects.filter(run=run).exists():
                break
            node.gone()
            assert node.run() == "idle"
        rows = list(Artifact.objects.filter(run=run).order_by("position"))
        folder = Path(_found(run).folder)
        texts = [(folder / str(row.position)).read_text() for row in rows]
        assert sorted(texts) == ["x\n", "y\n"], point
        named = dict(zip((row.name for row in rows), texts, strict=True))
        assert {name: text for name, text in named.items() if not name.startswith("unnamed-")}.items() <= {
            ("a", "x\n"), ("b", "y\n"),
        }, (point, named)  # fmt: skip
        assert sorted(_found(run).names) == ["1", "2", "manifest.json"], point
        assert kit.events(run).count("attempt.files_found") == 1, point
    run = kit.run_of(task)
    assert node.run() == "idle"
    _check_files(run, "none")
    node.check_clean()


def test_a_session_dies_that_puts_files_on_record(node: Node) -> None:  # noqa: F811
    task = _task(node)
    for point in SESSION:
        run = kit.run_of(task)
        assert node.run(point) == "killed", f"never came to {point}"
        node.gone()
        assert node.run() == "idle"
        node.check(run, point, attempts=(1,))
        _check_files(run, point)
    node.check_clean()
