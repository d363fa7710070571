"""The rows of the files that an attempt left; they are written with its end, in one statement for all of a pass."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apps.artifacts.collected import Kept
from apps.core import ids
from apps.runs.models import Run, RunAttempt

COLUMNS = (
    "id", "run_id", "attempt_id", "position", "name", "content_type", "size", "sha256", "created_at",
)  # fmt: skip


def rows(run: Run, attempt: RunAttempt, kept: Kept, now: datetime) -> list[tuple[Any, ...]]:
    """Values for COLUMNS, a row per file."""
    return [
        (ids.uuid7(), run.pk, attempt.pk, position, file.name, file.content_type, file.size, file.sha256, now)
        for position, file in enumerate(kept.files, 1)
    ]
