"""runs.md §19, scenario 38: a revision never changes, and a changed one is never executed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core import clock
from apps.tasks import revisions
from apps.tasks.errors import RevisionConflict, RevisionCorrupt
from apps.tasks.execution import Execution, Shell
from apps.tasks.models import TaskExecutionRevision
from apps.tasks.revisions import Revision

pytestmark = pytest.mark.django_db
KEY = ("default", "t", "1")


def _revision(text: str = "true") -> Revision:
    return Revision(
        project_id="default",
        task_id="t",
        task_revision="1",
        executor_type="local_process",
        execution=Execution(Shell(text)),
        context_ref="localctx:sha256:" + "0" * 64,
        created_at=clock.now(),
        created_by=("user", "u"),
    )


def test_runs_38_same_content_is_idempotent_and_other_content_a_conflict(time: Any) -> None:
    first = clock.now()
    status, row = revisions.insert(_revision())
    assert status == "inserted"
    time.advance(1_000)
    assert revisions.insert(_revision()) == ("idempotent", row)
    found = revisions.resolve(*KEY)
    assert found is not None
    assert found.created_at == first
    with pytest.raises(RevisionConflict) as caught:
        revisions.insert(_revision("false"))
    assert caught.value.extra == dict(zip(("project_id", "task_id", "task_revision"), KEY, strict=True))


def _reordered(text: str) -> str:
    return json.dumps(dict(reversed(json.loads(text).items())), separators=(",", ":"))


@pytest.mark.parametrize(
    ("column", "alter"),
    [
        ("execution_template", lambda text: text.replace("true", "trux")),
        ("execution_template", lambda text: text.replace(":", ": ", 1)),
        ("execution_template", _reordered),
        ("execution_template", lambda text: text[:-1]),
        ("execution_template", lambda text: text.replace('"kill_grace_ms":10000', '"kill_grace_ms":1e4')),
        ("content_digest", lambda text: "0" * 64),
        ("content_digest", lambda text: text.upper()),
        ("content_digest", lambda text: text[:-1]),
        ("executor_type", lambda text: "docker"),
        ("context_ref", lambda text: text[:-1] + "1"),
        ("context_ref", lambda text: ""),
    ],
)
def test_runs_38_one_altered_byte_is_corrupt(column: str, alter: Any) -> None:
    revision = _revision()
    row: dict[str, Any] = {
        "project_id": "default",
        "task_id": "t",
        "task_revision": "1",
        "executor_type": revision.executor_type,
        "execution_template": revision.template,
        "context_ref": revision.context_ref,
        "content_digest": revision.digest,
        "created_by_type": "user",
        "created_by_id": "u",
    }
    altered = alter(row[column])
    assert altered != row[column]
    TaskExecutionRevision.objects.create(**{**row, column: altered})
    with pytest.raises(RevisionCorrupt) as caught:
        revisions.resolve(*KEY)
    assert caught.value.extra["reason"]
    with pytest.raises(RevisionCorrupt):
        revisions.insert(revision)


def test_runs_38_the_database_refuses_every_update() -> None:
    revisions.insert(_revision())
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE task_execution_revisions SET context_ref = 'x'")
