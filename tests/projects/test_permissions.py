"""The permission registry: later floors add rows, nobody changes one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from apps.projects import permissions
from apps.projects.models import Role
from apps.projects.policy import decide
from tests.people import give, member, subject


def test_later_floors_add_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "_registry", dict(permissions.PERMISSIONS))
    added = permissions.register("workflow.read", roles=Role.values, read=True)
    assert permissions.find("workflow.read") is added and not added.agent_asks
    assert permissions.register("workflow.read", roles=Role.values, read=True) == added
    with pytest.raises(ValueError):
        permissions.register("workflow.read", roles=[Role.OWNER], read=True)
    for name in ("workflow", "Workflow.read", "a.b.c", "x." + "y" * 260, "tool.call:x"):
        with pytest.raises(ValueError):
            permissions.register(name, roles=[])
    with pytest.raises(ValueError):
        permissions.register("workflow.run", roles=["god"])


def test_roles_contain_each_other() -> None:
    sets = [permissions.of_role(role) for role in ("viewer", "operator", "admin", "owner")]
    assert [len(found) for found in sets] == [4, 10, 16, 17]
    assert all(lower < upper for lower, upper in pairwise(sets))


@pytest.mark.django_db
def test_a_decision_is_one_query_however_many_roles_there_are(django_assert_num_queries: Any) -> None:
    ann = member("viewer", "ann")
    for version in range(2, 12):
        give(ann, "operator" if version % 2 else None, version=version)
    for number in range(10):
        member("viewer", f"p{number}")
    with django_assert_num_queries(1):
        assert decide(subject(ann), "default", "run.start").effect == "allow"
    with django_assert_num_queries(1):
        assert decide(subject(ann), "none-such", "run.start").reason == "project_not_found"
