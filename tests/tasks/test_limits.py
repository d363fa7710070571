"""Limits of a task: their bounds, their place in a revision, and that revisions without them stay what they were."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core import canonical
from apps.tasks import limits, revisions
from apps.tasks.execution import Execution, Shell, from_template, to_template
from apps.tasks.limits import Limits, LimitsRefused
from apps.tasks.models import TaskExecutionRevision
from tests.people import api, member

URL = "projects/default/tasks"
ALL = {"cpu_seconds": 60, "cpu_percent": 150, "memory_bytes": 1 << 28, "processes": 40, "open_files": 256}


def test_what_has_none_is_stored_as_before() -> None:
    assert to_template(Execution(Shell("true"))) == {
        "body": {"kind": "shell", "text": "true"}, "kill_grace_ms": 10_000, "log_quota_bytes": 16_777_216,
    }  # fmt: skip
    assert from_template(to_template(Execution(Shell("true")))).limits == limits.NONE


def test_only_those_that_are_set_are_stored_in_a_fixed_order() -> None:
    execution = Execution(Shell("true"), limits=limits.read({"open_files": 64, "cpu_seconds": 5}))
    template = to_template(execution)
    assert canonical.ordered(template["limits"]) == '{"cpu_seconds":5,"open_files":64}'
    assert from_template(template) == execution


@pytest.mark.parametrize(
    "wrong",
    [
        [], "1", {"memory": 1}, {"cpu_seconds": 0}, {"cpu_seconds": True}, {"cpu_seconds": "5"},
        {"memory_bytes": 16_777_215}, {"memory_bytes": 2**40 + 1}, {"processes": 0}, {"processes": 1.0},
        {"open_files": 15}, {"cpu_percent": 100_001},
    ],
)  # fmt: skip
def test_limits_that_are_refused(wrong: Any) -> None:
    with pytest.raises(LimitsRefused):
        limits.read(wrong)
    with pytest.raises(ValueError, match="no limits"):
        from_template({**to_template(Execution(Shell("true"))), "limits": wrong})


@pytest.mark.django_db
def test_over_the_api_they_make_a_revision_and_go_with_null() -> None:
    call = api(member("owner"))
    made = call("POST", URL, {"name": "T", "shell": "true", "limits": {"memory_bytes": 1 << 28}})
    assert made.json()["limits"] == {**dict.fromkeys(ALL), "memory_bytes": 1 << 28}
    path = f"{URL}/{made.json()['id']}"
    changed = call("PATCH", path, {"limits": ALL}, If_Match=made["ETag"])
    assert (changed.json()["limits"], changed.json()["revision"]) == (ALL, "2")
    same = call("PATCH", path, {"limits": ALL}, If_Match=changed["ETag"])
    assert same.json()["revision"] == "2"
    gone = call("PATCH", path, {"limits": None}, If_Match=changed["ETag"])
    assert (gone.json()["limits"], gone.json()["revision"]) == (dict.fromkeys(ALL), "3")
    rows = TaskExecutionRevision.objects.order_by("task_revision")
    stored = [revisions.read(row).execution.limits for row in rows]
    assert stored == [Limits(memory_bytes=1 << 28), Limits(**ALL), limits.NONE]
    refused = call("PATCH", path, {"limits": {"processes": 0}}, If_Match=gone["ETag"])
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["limits"])
