from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from apps.audit.models import AuditEntry
from apps.core.errors import Forbidden, InvalidInput
from apps.projects.errors import ProjectArchived
from apps.projects.models import Project
from apps.tasks import services
from apps.tasks.errors import SlugTaken
from apps.tasks.models import Task, TaskExecutionRevision
from tests.tasks.kit import document, grant, make

DEFAULTS = {
    "description": "", "enabled": True, "archived_at": None, "executor": "local_process",
    "command": None, "shell": "true", "script": None, "work_dir": None, "env": {}, "secrets": {},
    "before": None, "after": None, "timeout_ms": None, "kill_grace_ms": 10_000, "log_quota_bytes": 16_777_216,
    "concurrency": "queue", "max_parallel": 1, "priority": 0,
    "retry": {"max_attempts": 1, "retry_on_lost": False, "safety": "unknown", "backoff_base_ms": 0,
              "backoff_max_ms": 0, "retry_on_failure": False, "retry_exit_codes": []},
    "limits": {"cpu_seconds": None, "cpu_percent": None, "memory_bytes": None, "processes": None, "open_files": None},
    "labels": [], "requires": {"labels": {}}, "pinned": False, "requires_approval": False,
    "revision": "1", "version": 1, "slug": "nightly", "name": "Nightly",
    "project": {"id": "default", "slug": "default"},
}  # fmt: skip

pytestmark = pytest.mark.django_db


def test_defaults_are_those_of_the_contract() -> None:
    task = make()
    found = document(task)
    assert {name: found[name] for name in DEFAULTS} == DEFAULTS
    assert set(found) - set(DEFAULTS) == {"id", "created_at", "updated_at"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["created_at"])


@pytest.mark.parametrize(
    "values",
    [
        {"command": ["pg_dump", "-Fc", "", "a b", "中文"]},
        {"shell": "echo $HOME\n  exit 3 "},
        {"script": {"language": "python", "source": "print(1)\n", "args": ["-x", ""]}},
        {"script": {"language": "typescript", "source": "let a: number", "args": []}},
        {
            "work_dir": "/srv/data",
            "env": {"A": ' "quoted"\n$x `y` \\ ', "B": ""},
            "before": "a\n",
            "after": "b",
        },
        {"timeout_ms": 1_000, "kill_grace_ms": 0, "log_quota_bytes": 65_536, "priority": -1_000},
        {"timeout_ms": 31 * 86_400_000, "kill_grace_ms": 600_000, "log_quota_bytes": 1_073_741_824},
        {"concurrency": "parallel", "max_parallel": 1_024, "labels": ["nightly", "夜间"], "pinned": True},
        {"enabled": False, "description": "one\ntwo", "slug": "my-own_name-9"},
        {"retry": DEFAULTS["retry"], "requires": {"labels": {}}, "secrets": {}},
    ],
)
def test_every_field_is_kept_as_given(values: dict[str, Any]) -> None:
    found = document(make(**values))
    assert {name: found[name] for name in values} == values


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""), ("name", "  "), ("name", "a\nb"), ("name", "x" * 256), ("name", 7), ("name", "a\0"),
        ("description", "x" * 10_001), ("description", "a\0b"), ("description", []),
        ("slug", "Upper"), ("slug", "-a"), ("slug", "a-"), ("slug", ""), ("slug", "x" * 65), ("slug", "a b"),
        ("slug", "a\n"), ("slug", "0198c0de-0000-7000-8000-000000000001"), ("slug", "0198c0de000070008000000000000001"),
        ("slug", 1),
        ("enabled", 1), ("pinned", "yes"),
        ("command", []), ("command", "ls"), ("command", [""]), ("command", ["a", 1]), ("command", ["a\0"]),
        ("command", ["a"] * 1_025), ("command", ["a", "x" * 65_537]), ("command", ["x" * 60_000] * 3),
        ("command", ["\ud800"]),
        ("shell", ""), ("shell", " \n"), ("shell", "a\0"), ("shell", "x" * 102_401), ("shell", "\udfff"), ("shell", 1),
        ("script", {}), ("script", []), ("script", {"language": "ruby", "source": "1"}),
        ("script", {"language": [], "source": "1"}), ("script", {"language": "python", "source": ""}),
        ("script", {"language": "python", "source": "a\0"}), ("script", {"language": "python"}),
        ("script", {"language": "python", "source": "1", "args": "x"}),
        ("script", {"language": "python", "source": "1", "more": 1}),
        ("script", {"language": "python", "source": "x" * 1_048_577}),
        ("work_dir", ""), ("work_dir", "../x"), ("work_dir", "a/../b"), ("work_dir", "/a/.."), ("work_dir", "a\0"),
        ("work_dir", "x" * 1_025), ("work_dir", 3),
        ("env", []), ("env", {"A": 1}), ("env", {"A=B": "x"}), ("env", {"": "x"}), ("env", {"A": "x\0"}),
        ("env", {"A\0": "x"}), ("env", {"A": "\ud800"}), ("env", {"x" * 256: ""}), ("env", {"A": "x" * 65_537}),
        ("env", {f"n{i}": "" for i in range(257)}), ("env", {f"n{i}": "x" * 65_536 for i in range(4)}),
        ("env", {"QINGLONG_RUN_ID": "x"}), ("env", {"RUN_FENCE": "x"}),
        ("before", "a\0"), ("before", 1), ("after", "x" * 102_401),
        ("timeout_ms", 999), ("timeout_ms", 31 * 86_400_000 + 1), ("timeout_ms", True), ("timeout_ms", 1000.5),
        ("timeout_ms", "1000"),
        ("kill_grace_ms", -1), ("kill_grace_ms", 600_001),
        ("log_quota_bytes", 65_535), ("log_quota_bytes", 1_073_741_825),
        ("concurrency", "all"), ("concurrency", []), ("max_parallel", 0), ("max_parallel", 1_025),
        ("priority", -1_001), ("priority", 1_001),
        ("labels", "a"), ("labels", [""]), ("labels", ["x" * 65]), ("labels", ["a\nb"]), ("labels", [1]),
        ("labels", [str(i) for i in range(33)]),
        ("secrets", []), ("retry", 3), ("requires", "x"), ("requires", {"labels": []}), ("requires", {"label": {}}),
        ("requires", {"labels": {"GPU": "yes"}}), ("requires", {"labels": {"gpu": 1}}),
        ("requires", {"labels": {"gpu": "a,b"}}), ("requires", {"labels": {"gpu": "a\n"}}),
        ("requires", {"labels": {"gpu": "a，b"}}), ("requires", {"labels": {"gpu": " a"}}),
        ("requires", {"labels": {f"l{n}": "" for n in range(17)}}), ("requires", {"labels": {"a": "x" * 257}}),
        ("requires", {"labels": {f"l{n}": "x" * 200 for n in range(6)}}),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(**{field: value})
    assert caught.value.code == "invalid"
    assert list(caught.value.fields) == [field]
    assert not TaskExecutionRevision.objects.exists()


def test_d15_nul_is_refused_with_a_message() -> None:
    with pytest.raises(InvalidInput) as caught:
        make(env={"A": "x\0"}, before="\0")
    assert {name: "NUL" in str(said[0]) for name, said in caught.value.fields.items()} == {
        "env": True,
        "before": True,
    }


@pytest.mark.parametrize(
    "values",
    [{}, {"command": ["a"], "shell": "b"}, {"shell": "a", "script": {"language": "shell", "source": "b"}}],
)
def test_exactly_one_body(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        services.create_task(grant("task.create"), services.TaskDraft(name="a", **values))
    assert "command" in caught.value.fields


def test_more_than_one_place_needs_parallel() -> None:
    for concurrency in ("queue", "skip", "replace"):
        with pytest.raises(InvalidInput) as caught:
            make(concurrency=concurrency, max_parallel=2)
        assert "max_parallel" in caught.value.fields


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Back up the database", r"back-up-the-database"),
        ("  Ünïcode & co  ", r"unicode-co"),
        ("备份数据库", r"task-[a-z]{4}"),
        ("备份 db", r"db"),
        ("!!!", r"task-[a-z]{4}"),
        ("x" * 255, r"x{58}"),
        ("0198c0de-0000-7000-8000-000000000001", r"task-0198c0de-0000-7000-8000-000000000001"),
    ],
)
def test_a_short_name_is_made_from_the_name(name: str, slug: str) -> None:
    assert re.fullmatch(slug, make(name=name).slug)


def test_equal_names_get_numbers_and_equal_slugs_a_conflict() -> None:
    assert [make(name="Same").slug for _index in range(3)] == ["same", "same-2", "same-3"]
    with pytest.raises(SlugTaken) as caught:
        make(slug="same")
    assert caught.value.status == 409
    Task.objects.filter(slug="same").update(archived_at="2026-01-01T00:00Z", enabled=False)
    assert make(slug="same").slug == "same"


def test_it_is_audited_without_values() -> None:
    task = make(env={"TOKEN": "not-for-the-trail"})
    entry = AuditEntry.objects.get(action="task.created")
    assert (entry.scope, entry.subject_type, entry.subject_id) == ("default", "task", str(task.pk))
    assert (entry.actor_type, entry.actor_id) == ("system", "tests")
    assert "not-for-the-trail" not in str(entry.metadata) + repr(
        services.TaskDraft(name="a", env={"A": "not-for"})
    )


def test_rights_are_confirmed() -> None:
    with pytest.raises(Forbidden):
        services.create_task(grant("task.update"), services.TaskDraft(name="a", shell="true"))
    Project.objects.filter(pk="default").update(status="archived")
    with pytest.raises(ProjectArchived):
        make()


def test_labels_lose_doubles_and_blanks() -> None:
    assert make(labels=[" a", "b", "a "]).labels == ["a", "b"]


@pytest.mark.parametrize("bad", [None, [], "x", {}, {"nam": 1}, {"name": "a", "shell": "b", "id": "1"}])
def test_a_draft_from_json_refuses_what_it_does_not_know(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        services.TaskDraft.from_json(bad)


@pytest.mark.django_db(transaction=True)
def test_equal_names_at_the_same_moment(seeded: None) -> None:
    barrier = Barrier(4)

    def create(_index: int) -> str:
        try:
            barrier.wait(10)
            return make(name="Race").slug
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, range(4))) == ["race", "race-2", "race-3", "race-4"]
