"""Rows that never change, refused by the database itself on both engines."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from apps.audit.models import AuditEntry
from apps.identity.models import IdentityAuthenticationBinding
from apps.projects.models import ProjectRoleBinding
from apps.runs.models import RunEvent
from apps.tasks.models import TaskExecutionRevision
from apps.vault.models import ExecutionContextRecipe
from tests import people
from tests.runs import kit

KEPT = {IdentityAuthenticationBinding, ProjectRoleBinding, AuditEntry}
FROZEN = [RunEvent, TaskExecutionRevision, ExecutionContextRecipe, *sorted(KEPT, key=lambda m: m.__name__)]


@pytest.fixture
def rows(db: None) -> None:
    ann = people.member("owner")
    kit.run_of(kit.task(env={"A": "1"}), grant=people.grant(ann, "run.start"))


@pytest.mark.parametrize("model", FROZEN)
def test_no_column_can_be_changed(rows: None, model: Any) -> None:
    before = list(model._default_manager.order_by("pk").values())
    assert before
    for field in model._meta.concrete_fields:
        with (
            pytest.raises(DatabaseError, match="immutable"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(f'UPDATE "{model._meta.db_table}" SET "{field.column}" = "{field.column}"')
    with pytest.raises(DatabaseError, match="immutable"), transaction.atomic():
        model._default_manager.first().save()
    assert list(model._default_manager.order_by("pk").values()) == before


@pytest.mark.parametrize("model", [*(model for model in FROZEN if model in KEPT), RunEvent])
def test_no_row_can_be_deleted(rows: None, model: Any) -> None:
    """Audit and bindings stay for ever; events go into their run's summary or not at all (test_folding.py)."""
    told = "immutable" if model in KEPT else "not allowed"
    with pytest.raises(DatabaseError, match=told), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f'DELETE FROM "{model._meta.db_table}"')
    assert model._default_manager.exists()
