"""Immutable revisions of what a task executes, verified at every read (runs.md §3.9, §12)."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Q

from apps.core import canonical, clock, db, ids
from apps.core.errors import InvalidInput
from apps.tasks.errors import RevisionConflict, RevisionCorrupt
from apps.tasks.execution import LOCAL_PROCESS, Execution, from_template, to_template
from apps.tasks.models import TaskExecutionRevision

EXECUTOR_TYPES = frozenset({LOCAL_PROCESS})
MAX_ID = 128
MAX_CONTEXT_REF = 512
_DIGEST = re.compile(r"[0-9a-f]{64}")

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Revision:
    """One revision, verified. `created_by` is (subject type, subject id)."""

    project_id: str
    task_id: str
    task_revision: str
    executor_type: str
    execution: Execution
    context_ref: str = field(repr=False)
    created_at: datetime
    created_by: tuple[str, str]

    @property
    def key(self) -> Key:
        return (self.project_id, self.task_id, self.task_revision)

    @property
    def template(self) -> str:
        """The canonical text of the execution."""
        return canonical.ordered(to_template(self.execution))

    @property
    def digest(self) -> str:
        """SHA-256 over everything but the time and the author."""
        return canonical.sha256(
            canonical.ordered(
                {
                    "project_id": self.project_id,
                    "task_id": self.task_id,
                    "task_revision": self.task_revision,
                    "executor_type": self.executor_type,
                    "execution": to_template(self.execution),
                    "context_ref": self.context_ref,
                }
            )
        )


def resolve(project_id: str, task_id: str, task_revision: str) -> Revision | None:
    """The verified revision or None; raises RevisionCorrupt, and InvalidInput for impossible ids."""
    key = (project_id, task_id, task_revision)
    return resolve_many([key]).get(key)


def resolve_many(keys: Collection[Key]) -> dict[Key, Revision]:
    """Verified revisions by (project id, task id, revision) in one query; absent ones are left out."""
    if not all(ids.is_text_id(part, MAX_ID) for key in keys for part in key):
        raise InvalidInput
    if not keys:
        return {}
    wanted = Q()
    for project_id, task_id, task_revision in set(keys):
        wanted |= Q(project_id=project_id, task_id=task_id, task_revision=task_revision)
    found = [read(row) for row in TaskExecutionRevision.objects.filter(wanted)]
    return {revision.key: revision for revision in found}


@db.write_transaction
def insert(revision: Revision) -> tuple[Literal["inserted", "idempotent"], UUID]:
    """Stores a revision once and returns its row's id; the first time of creation stays.

    Raises RevisionConflict where the key has other content and RevisionCorrupt where its row is damaged.
    """
    row = TaskExecutionRevision(
        project_id=revision.project_id,
        task_id=revision.task_id,
        task_revision=revision.task_revision,
        executor_type=revision.executor_type,
        execution_template=revision.template,
        requires=revision.execution.requires,
        uses_secrets=bool(revision.execution.secrets),
        context_ref=revision.context_ref,
        content_digest=revision.digest,
        created_at=revision.created_at,
        created_by_type=revision.created_by[0],
        created_by_id=revision.created_by[1],
    )
    read(row)
    try:
        with db.savepoint():
            row.save(force_insert=True)
    except IntegrityError as error:
        if not db.is_unique_violation(error):
            raise
        return "idempotent", _twin(revision)
    return "inserted", row.pk


def next_number(current: str | None) -> str:
    """The revision after `current`: whole numbers from 1, as text."""
    return str(int(current) + 1) if current is not None else "1"


def read(row: TaskExecutionRevision) -> Revision:
    """The revision of a row, verified; raises RevisionCorrupt with a short `reason`."""
    if row.executor_type not in EXECUTOR_TYPES:
        raise RevisionCorrupt(reason="executor")
    if not all(ids.is_text_id(part, MAX_ID) for part in (row.project_id, row.task_id, row.task_revision)):
        raise RevisionCorrupt(reason="identity")
    if not ids.is_text_id(row.context_ref, MAX_CONTEXT_REF):
        raise RevisionCorrupt(reason="context")
    try:
        execution = from_template(canonical.loads(row.execution_template))
    except ValueError as error:
        raise RevisionCorrupt(reason="template") from error
    revision = Revision(
        project_id=row.project_id,
        task_id=row.task_id,
        task_revision=row.task_revision,
        executor_type=row.executor_type,
        execution=execution,
        context_ref=row.context_ref,
        created_at=row.created_at,
        created_by=(row.created_by_type, row.created_by_id),
    )
    if revision.template != row.execution_template:
        raise RevisionCorrupt(reason="not canonical")
    if execution.requires != row.requires:
        raise RevisionCorrupt(reason="requires")
    if bool(execution.secrets) != row.uses_secrets:
        raise RevisionCorrupt(reason="secrets")
    if not _DIGEST.fullmatch(row.content_digest) or not hmac.compare_digest(
        revision.digest, row.content_digest
    ):
        raise RevisionCorrupt(reason="digest")
    if not clock.from_ms(0) <= row.created_at:
        raise RevisionCorrupt(reason="time")
    return revision


def _twin(revision: Revision) -> UUID:
    project_id, task_id, task_revision = revision.key
    row = TaskExecutionRevision.objects.filter(
        project_id=project_id, task_id=task_id, task_revision=task_revision
    ).first()
    if row is None or not hmac.compare_digest(read(row).digest, revision.digest):
        raise RevisionConflict(project_id=project_id, task_id=task_id, task_revision=task_revision)
    found: UUID = row.pk
    return found
