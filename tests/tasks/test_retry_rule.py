"""The rule by which a task's runs are tried again, as a field of the task (api.md, runs.md §3.4)."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import AuditEntry
from apps.core.errors import InvalidInput
from apps.tasks.models import Task, TaskExecutionRevision
from apps.tasks.retry import RetryRule
from tests.tasks.kit import change, document, grant, make

DEFAULT = RetryRule().document()
WHOLE = {
    "max_attempts": 16, "retry_on_lost": True, "safety": "deduplicated", "backoff_base_ms": 86_400_000,
    "backoff_max_ms": 86_400_000, "retry_on_failure": True, "retry_exit_codes": list(range(1, 33)),
}  # fmt: skip

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "rule",
    [
        DEFAULT,
        WHOLE,
        {**DEFAULT, "max_attempts": 3, "retry_on_failure": True},
        {**DEFAULT, "retry_on_lost": True},  # one attempt: nothing is run twice
        {**DEFAULT, "max_attempts": 2, "retry_on_lost": True, "safety": "idempotent"},
        {**DEFAULT, "backoff_max_ms": 1},
    ],
)
def test_a_rule_is_kept_as_given(rule: dict[str, Any]) -> None:
    task = make(retry=rule)
    assert document(task)["retry"] == rule
    assert Task.objects.get(pk=task.pk).retry == (None if rule == DEFAULT else rule)


def test_what_is_left_out_has_its_default_and_codes_are_put_in_order() -> None:
    assert document(make(retry={}))["retry"] == DEFAULT
    found = document(make(retry={"max_attempts": 2, "retry_exit_codes": [75, 3, 75]}))["retry"]
    assert found == {**DEFAULT, "max_attempts": 2, "retry_exit_codes": [3, 75]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0}, {"max_attempts": 17}, {"max_attempts": True}, {"max_attempts": 2.0}, {"max_attempts": "2"},
        {"retry_on_lost": 0}, {"retry_on_failure": "yes"}, {"safety": "sure"}, {"safety": None}, {"safety": []},
        {"backoff_base_ms": 2, "backoff_max_ms": 1}, {"backoff_base_ms": -1}, {"backoff_max_ms": 86_400_001},
        {"backoff_base_ms": 86_400_001, "backoff_max_ms": 86_400_001}, {"backoff_max_ms": True},
        {"retry_exit_codes": [0]}, {"retry_exit_codes": [256]}, {"retry_exit_codes": [-1]},
        {"retry_exit_codes": [True]}, {"retry_exit_codes": 1}, {"retry_exit_codes": list(range(1, 34))},
        {"retry_exit_codes": {"1": 1}}, {"max_attempts": 2, "retry_on_lost": True},
        {"max_attempts": 2, "retry_on_lost": True, "safety": "unknown"}, {"retries": 2},
    ],
)  # fmt: skip
def test_a_wrong_rule_names_the_field_and_makes_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(retry=wrong)
    assert (caught.value.code, list(caught.value.fields)) == ("invalid", ["retry"])
    assert not TaskExecutionRevision.objects.exists()


def test_a_change_is_a_version_without_a_revision_and_audited() -> None:
    task = change(make(), retry=WHOLE)
    found = document(task)
    assert (found["retry"], found["version"], found["revision"]) == (WHOLE, 2, "1")
    entry = AuditEntry.objects.get(action="task.updated")
    assert entry.metadata == {"fields": ["retry"]}
    assert document(change(task, retry=WHOLE))["version"] == 2
    assert document(change(task, retry=None))["retry"] == DEFAULT


def test_a_copy_is_tried_again_as_its_source_is() -> None:
    from apps.tasks.services import copy_task

    source = make(retry=WHOLE)
    assert document(copy_task(grant("task.create"), source.pk))["retry"] == WHOLE
