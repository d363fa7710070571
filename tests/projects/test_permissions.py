"""The permission registry: later floors add rows, nobody changes one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from apps.projects import permissions
from apps.projects.models import Role


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
