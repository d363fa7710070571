from __future__ import annotations

import pytest

from apps.audit.models import AuditEntry
from apps.core import ids
from apps.core.errors import NotFound
from apps.tasks import services
from tests.tasks.kit import change, document, grant, make

pytestmark = pytest.mark.django_db


def test_a_copy_executes_the_same_under_another_name() -> None:
    task = change(make(env={"A": "1\n"}, labels=["a"], pinned=True, enabled=False), shell="new")
    copy = services.copy_task(grant("task.create"), task.pk)
    before, after = document(task), document(copy)
    assert {name for name in before if before[name] != after[name]} == {
        "id", "name", "slug", "pinned", "revision", "version", "created_at", "updated_at",
    }  # fmt: skip
    assert (after["name"], after["slug"], after["revision"]) == ("Nightly (copy)", "nightly-2", "1")
    assert AuditEntry.objects.get(action="task.copied").metadata == {"from": str(task.pk)}


def test_a_long_name_and_no_task() -> None:
    copy = services.copy_task(grant("task.create"), make(name="x" * 255).pk)
    assert len(copy.name) < 255
    with pytest.raises(NotFound):
        services.copy_task(grant("task.create"), ids.uuid7())
