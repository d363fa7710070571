"""Files that scripts left, read in the order that is a rule for logs (secrets-and-artifacts.md §6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from apps.artifacts import queries, reader, tallies
from apps.artifacts.errors import EvidenceConflict, FileMissing, FileRetained
from apps.artifacts.models import Artifact
from apps.artifacts.services import PERMISSION
from apps.core import pages
from apps.core.errors import NotFound
from apps.core.pages import Page
from apps.projects.policy import Grant

_ORDER = [pages.identifier("attempt_id"), pages.Key("position")]


@dataclass(frozen=True)
class OpenFile:
    """A file with its bytes, to be closed by the caller."""

    row: Artifact
    content: reader.Stream


def page(
    grant: Grant,
    run_id: UUID,
    *,
    attempt: int | None = None,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> Page[Artifact]:
    """What a run left, attempt by attempt, each row with its attempt and the record of its removal.

    One query; no file is touched. Raises NotFound for a grant of another right, and the errors of cursors.
    """
    if grant.permission != PERMISSION:
        raise NotFound
    rows = Artifact.objects.filter(run_id=run_id, run__project_id=grant.project_id)
    if attempt is not None:
        rows = rows.filter(attempt__attempt=attempt)
    return pages.paginate(
        rows.select_related("attempt__retention"),
        _ORDER,
        kind="artifacts",
        scope={"run": str(run_id), "attempt": attempt},
        limit=limit,
        cursor=cursor,
    )


def open_file(grant: Grant, run_id: UUID, artifact_id: UUID) -> OpenFile:
    """A file as it was collected.

    No file is touched without the right, nor before the database knows it. Raises NotFound, FileRetained,
    FileMissing, UnsafeReadTarget, MetadataCorrupt, and EvidenceConflict where its size is not the one on record.
    """
    row, log_artifact_id = _find(grant, run_id, artifact_id)
    content = reader.stream_file(log_artifact_id, row.position)
    if isinstance(content, reader.Missing):
        _find(grant, run_id, artifact_id)  # it may have been removed by its rule just now
        tallies.missing_read()
        raise FileMissing
    if content.total_bytes != row.size:
        content.close()
        raise EvidenceConflict
    return OpenFile(row, content)


def _find(grant: Grant, run_id: UUID, artifact_id: UUID) -> tuple[Artifact, str]:
    rows = Artifact.objects.filter(run_id=run_id, run__project_id=grant.project_id)
    row = rows.filter(pk=artifact_id).select_related("attempt__retention").first()
    if row is None or grant.permission != PERMISSION:
        raise NotFound
    if queries.retention_of(row.attempt) is not None:
        raise FileRetained
    log_artifact_id = row.attempt.log_artifact_id
    if log_artifact_id is None:
        raise NotFound
    return row, log_artifact_id
