"""Old rules and switches go; what was in force at the horizon stays, so that every later question has its answer."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core import clock, ids
from apps.triggers.models import Switch, TriggerRevision
from apps.triggers.services.forgetting import forget_rules, forget_switches
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000


def _revision(trigger: Any, version: int, **values: Any) -> TriggerRevision:
    return TriggerRevision.objects.create(
        **{
            "project_id": "default", "task_id": ids.uuid7(), "trigger_id": trigger, "version": version, "kind": "cron",
            "schedule": "* * * * *", "timezone": "UTC", "enabled": True, "changed_by_type": "user",
            "changed_by_id": "u", "created_at": clock.now(), **values,
        }
    )  # fmt: skip


def test_replaced_rules_go_and_the_one_in_force_stays(time: Any) -> None:
    trigger, deleted = ids.uuid7(), ids.uuid7()
    _revision(trigger, 1)
    in_force = _revision(trigger, 2)
    _revision(deleted, 1)
    _revision(deleted, 2, deleted=True)
    time.advance(91 * DAY_MS)
    new = _revision(trigger, 3)
    assert forget_rules() == 3
    assert set(TriggerRevision.objects.values_list("pk", flat=True)) == {in_force.pk, new.pk}
    assert forget_rules() == 0


def test_a_trigger_deleted_lately_keeps_what_it_was(time: Any) -> None:
    trigger = ids.uuid7()
    was = _revision(trigger, 1)
    time.advance(91 * DAY_MS)
    end = _revision(trigger, 2, deleted=True)
    assert forget_rules() == 0
    assert set(TriggerRevision.objects.values_list("pk", flat=True)) == {was.pk, end.pk}


def test_switches_of_each_kind_and_of_tasks_and_projects_apart(time: Any) -> None:
    task = make().pk
    Switch.objects.all().delete()

    def switch(state: str, task_id: Any = None) -> Any:
        return Switch.objects.create(
            project_id="default", task_id=task_id, state=state, changed_by_type="user", changed_by_id="u",
            created_at=clock.now(),
        ).pk  # fmt: skip

    switch("disabled", task)
    archived = switch("archived", task)
    enabled = switch("enabled", task)
    switch("archived")
    restored = switch("restored")
    time.advance(91 * DAY_MS)
    young = switch("disabled", task)
    assert forget_switches() == 2
    assert set(Switch.objects.values_list("pk", flat=True)) == {archived, enabled, restored, young}
