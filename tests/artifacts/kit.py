"""Runs with logs, written straight into database and disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.artifacts import collected, collection, facts
from apps.artifacts.collected import Collected, Kept
from apps.artifacts.models import Artifact
from apps.core import bulk, clock, ids
from apps.projects.policy import Grant
from apps.runs.models import Run, RunAttempt
from tests.tasks.kit import make

GRANT = Grant.system("default", "artifact.read", "tests")


def run(status: str = "running", **values: Any) -> Run:
    """A run of a new task."""
    task = make(values.get("project_id", "default"))
    return Run.objects.create(
        **{
            "project_id": task.project_id,
            "task": task,
            "task_revision": "1",
            "task_name": task.name,
            "trigger_type": "manual",
            "triggered_by_type": "system",
            "triggered_by_id": "tests",
            "status": status,
            **values,
        }
    )


def attempt(of: Run, number: int = 1, status: str = "running", **values: Any) -> RunAttempt:
    """An attempt that was let go and given a log."""
    attempt_id = ids.uuid7()
    values = {
        "log_artifact_id": facts.artifact_id(str(of.pk), str(attempt_id)),
        "started_at": clock.now(),
        **values,
    }
    return RunAttempt.objects.create(id=attempt_id, run=of, attempt=number, status=status, **values)


def log_path(of: RunAttempt) -> Path:
    assert of.log_artifact_id is not None
    return Path(facts.log_paths(str(settings.LOG_ROOT), of.log_artifact_id).log)


def write(of: RunAttempt, content: bytes) -> Path:
    """The log file of an attempt."""
    path = log_path(of)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def publish(of: RunAttempt, quota_reached: bool, **changes: Any) -> None:
    """The truncation fact of an attempt."""
    assert of.log_artifact_id is not None
    values: dict[str, Any] = {
        "run_id": str(of.run_id),
        "attempt_id": str(of.pk),
        "log_artifact_id": of.log_artifact_id,
        "maximum_bytes": 65_536,
        "quota_reached": quota_reached,
        "observed_at_ms": 1,
    }
    facts.publish_fact(str(settings.LOG_ROOT), facts.TruncationFact(**{**values, **changes}))


def leave(of: RunAttempt, *files: tuple[str, bytes, str]) -> list[Artifact]:
    """Collected files of an attempt: name, content, type. On disk and on record."""
    assert of.log_artifact_id is not None
    folder = Path(collected.folder_of(str(settings.LOG_ROOT), of.log_artifact_id))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = [
        Collected(name, len(content), hashlib.sha256(content).hexdigest(), kind)
        for name, content, kind in files
    ]
    for number, (_name, content, _kind) in enumerate(files, 1):
        (folder / str(number)).write_bytes(content)
    inside = os.open(folder, os.O_RDONLY)
    collected.write_manifest(inside, str(of.run_id), str(of.pk), told)
    os.close(inside)
    bulk.insert_rows(
        Artifact, collection.COLUMNS, collection.rows(of.run, of, Kept(tuple(told), {}), clock.now())
    )
    return list(Artifact.objects.filter(attempt=of).order_by("position"))


def file_path(row: Artifact) -> Path:
    assert row.attempt.log_artifact_id is not None
    return Path(collected.folder_of(str(settings.LOG_ROOT), row.attempt.log_artifact_id), str(row.position))
