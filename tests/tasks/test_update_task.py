from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from apps.audit.models import AuditEntry
from apps.core import clock, ids, participants
from apps.core.errors import Forbidden, InvalidInput, NotFound, VersionConflict
from apps.tasks import revisions, services
from apps.tasks.errors import SlugTaken, TaskArchived
from apps.tasks.models import Task, TaskExecutionRevision
from tests.tasks.kit import change, document, grant, make

pytestmark = pytest.mark.django_db

EXECUTED = {
    "command": ["ls"],
    "shell": "false",
    "script": {"language": "python", "source": "1", "args": []},
    "work_dir": "sub",
    "env": {"A": "1"},
    "before": "x",
    "after": "y",
    "timeout_ms": 5_000,
    "kill_grace_ms": 1,
    "log_quota_bytes": 70_000,
}
BESIDE = {
    "name": "Other",
    "slug": "other",
    "description": "d",
    "concurrency": "skip",
    "priority": 5,
    "labels": ["a"],
    "pinned": True,
}


@pytest.mark.parametrize("field", EXECUTED)
def test_a_change_of_what_is_executed_makes_a_revision(field: str) -> None:
    task = make()
    changed = change(task, **{field: EXECUTED[field]})
    found = document(changed)
    assert (found["revision"], found["version"]) == ("2", 2)
    assert found[field] == EXECUTED[field]
    assert sum(found[name] is not None for name in ("command", "shell", "script")) == 1
    first = revisions.resolve("default", str(task.pk), "1")
    assert first is not None
    assert first.execution == revisions.read(task.revision).execution
    assert AuditEntry.objects.get(action="task.updated").metadata == {"fields": [field]}


@pytest.mark.parametrize("field", BESIDE)
def test_any_other_change_keeps_the_revision(field: str) -> None:
    changed = change(make(), **{field: BESIDE[field]})
    found = document(changed)
    assert (found["revision"], found["version"], found[field]) == ("1", 2, BESIDE[field])
    assert TaskExecutionRevision.objects.count() == 1


def test_null_is_the_default_and_fields_are_replaced_whole() -> None:
    task = make(
        work_dir="a", env={"A": "1", "B": "2"}, timeout_ms=5_000, kill_grace_ms=1, log_quota_bytes=70_000,
        before="a", after="b", labels=["x", "y"], priority=3, description="d", pinned=True,
        concurrency="parallel", max_parallel=4, slug="mine",
    )  # fmt: skip
    task = change(task, env={"C": "3"}, labels=["z"])
    assert (document(task)["env"], task.labels) == ({"C": "3"}, ["z"])
    nulls: dict[str, Any] = dict.fromkeys(
        [
            "work_dir", "env", "timeout_ms", "kill_grace_ms", "log_quota_bytes", "before", "after", "labels",
            "priority", "description", "pinned", "concurrency", "max_parallel", "slug", "secrets", "retry",
            "requires", "command", "script",
        ]
    )  # fmt: skip
    found = document(change(task, **nulls))
    plain = document(make())
    differs = {name for name in found if found[name] != plain[name]}
    assert differs <= {"id", "slug", "revision", "version", "created_at", "updated_at"}
    assert found["slug"] == "nightly"


def test_nothing_changed_changes_nothing() -> None:
    task = make(env={"A": "1"}, labels=["a"])
    same = change(task, **document(task), at=1)
    assert (same.version, same.updated_at) == (1, task.updated_at)
    assert not AuditEntry.objects.filter(action="task.updated").exists()
    assert TaskExecutionRevision.objects.count() == 1


def test_the_body_is_replaced_by_another_kind_only() -> None:
    task = make(shell="a")
    with pytest.raises(InvalidInput):
        change(task, shell=None)
    with pytest.raises(InvalidInput):
        change(task, shell="b", command=["c"])
    task = change(task, shell=None, command=["c"])
    assert document(task)["command"] == ["c"]
    task = change(task, shell=None)
    assert document(task)["command"] == ["c"]


def test_parallel_and_its_number() -> None:
    task = make(concurrency="parallel", max_parallel=5)
    with pytest.raises(InvalidInput):
        change(task, concurrency="queue", max_parallel=5)
    task = change(task, concurrency="queue")
    assert (task.concurrency, task.max_parallel) == ("queue", 1)
    with pytest.raises(InvalidInput):
        change(task, max_parallel=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "x"), ("project", {"id": "b"}), ("executor", "docker"), ("archived_at", "now"), ("revision", "9"),
        ("version", 9), ("created_at", None), ("updated_at", "x"), ("enabled", False), ("unknown", 1),
        ("name", None), ("timeout_ms", 1),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_names_its_field(field: str, value: Any) -> None:
    task = make()
    with pytest.raises(InvalidInput) as caught:
        change(task, **{field: value})
    assert list(caught.value.fields) == [field]


def test_version_owner_and_state_are_checked() -> None:
    task = make()
    change(task, name="b")
    with pytest.raises(VersionConflict) as caught:
        change(task, name="c")
    assert caught.value.extra == {"current_version": 2}
    with pytest.raises(NotFound):
        services.update_task(grant("task.update"), ids.uuid7(), 1, {})
    with pytest.raises(Forbidden):
        services.update_task(grant("task.create"), task.pk, 2, {})
    Task.objects.update(archived_at=clock.now())
    with pytest.raises(TaskArchived):
        change(task, at=2, name="c")


def test_a_taken_short_name_is_a_conflict() -> None:
    make(slug="one")
    two = make(slug="two")
    with pytest.raises(SlugTaken):
        change(two, slug="one")
    assert change(two, name="three").slug == "two"


def test_whoever_follows_a_task_hears_of_it() -> None:
    heard: list[Any] = []
    participants.register(services.CHANGED, heard.extend)
    try:
        task = make()
        change(task, priority=1)
    finally:
        participants._callbacks[services.CHANGED].remove(heard.extend)
    assert heard == [task.pk, task.pk]


@pytest.mark.django_db(transaction=True)
def test_two_changes_of_one_version(seeded: None) -> None:
    task = make()
    barrier = Barrier(2)

    def run(text: str) -> str:
        try:
            barrier.wait(10)
            return document(change(task, shell=text))["revision"]
        except VersionConflict:
            return "conflict"
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(run, ["a", "b"])) == ["2", "conflict"]
    assert TaskExecutionRevision.objects.count() == 2
