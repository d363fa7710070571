"""What a task needs of a worker is part of its revision, and decided on each run at its start (api.md, "Task")."""

from __future__ import annotations

from typing import Any

import pytest

from apps.runs.models import Run
from apps.tasks import placement, queries, revisions
from apps.tasks.errors import RevisionCorrupt
from apps.tasks.models import TaskExecutionRevision
from apps.tasks.services import update_task
from tests.runs import kit

GPU = {"labels": {"gpu": "a100", "zone": "eu"}}


def change(task: Any, **values: Any) -> Any:
    return update_task(kit.grant("task.update"), task.pk, task.version, values)


@pytest.mark.django_db
def test_a_changed_need_is_a_new_revision_and_concerns_later_runs() -> None:
    task = kit.task(concurrency="parallel", max_parallel=8)
    plain = kit.run_of(task)
    task = change(task, requires=GPU)
    assert queries.view(task).document()["requires"] == GPU
    assert task.revision.task_revision == "2"
    needing = kit.run_of(task)
    assert (plain.requires, needing.requires) == ("", '{"gpu":"a100","zone":"eu"}')
    same = change(task, requires={"labels": {"zone": "eu", "gpu": "a100"}})
    assert same.version == task.version
    task = change(task, requires=None)
    assert (task.revision.task_revision, kit.run_of(task).requires) == ("3", "")
    assert kit.fresh(needing).requires == needing.requires


@pytest.mark.django_db
def test_without_a_need_a_revision_is_as_it_was_before_there_were_any() -> None:
    row = TaskExecutionRevision.objects.get(task_id=str(kit.task().pk))
    assert "requires" not in row.execution_template


@pytest.mark.django_db
def test_a_revision_whose_need_was_altered_is_corrupt() -> None:
    row = TaskExecutionRevision.objects.get(task_id=str(kit.task(requires=GPU).pk))
    assert revisions.read(row).execution.requires == placement.key_of(GPU["labels"])
    row.requires = ""
    with pytest.raises(RevisionCorrupt):
        revisions.read(row)


@pytest.mark.parametrize(
    ("labels", "offered", "fits"),
    [
        ({}, {}, True),
        ({}, {"gpu": "x"}, True),
        ({"gpu": "x"}, {}, False),
        ({"gpu": "x"}, {"gpu": "y"}, False),
        ({"gpu": "x"}, {"gpu": "x", "zone": "eu"}, True),
        ({"gpu": "x", "zone": "eu"}, {"gpu": "x"}, False),
        ({"gpu": ""}, {"gpu": "x"}, False),
    ],
)
def test_all_labels_with_their_values(labels: Any, offered: Any, fits: bool) -> None:
    assert placement.fits(placement.key_of(labels), offered) is fits


@pytest.mark.django_db
def test_the_longest_need_fits_into_the_index() -> None:
    labels = {f"l{n}": "字" * 18 for n in range(16)}
    task = kit.task(requires={"labels": labels})
    run = Run.objects.get(pk=kit.run_of(task).pk)
    assert placement.labels_of(run.requires) == labels
    assert 900 < len(run.requires.encode()) <= placement.MAX_KEY_BYTES
