"""Making and changing tasks in tests, by a system subject that may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.projects.policy import Grant
from apps.tasks import queries, services
from apps.tasks.models import Task


def grant(permission: str, project_id: str = "default") -> Grant:
    """The right, confirmed only by the project being active."""
    return Grant.system(project_id, permission, "tests")


def make(project_id: str = "default", **values: Any) -> Task:
    """A task that runs `true` unless said otherwise."""
    if not {"command", "shell", "script"} & set(values):
        values["shell"] = "true"
    draft = services.TaskDraft(**{"name": "Nightly", **values})
    return services.create_task(grant("task.create", project_id), draft)


def change(task: Task, *, at: int | None = None, **changes: Any) -> Task:
    """The task after a change against the version it had."""
    return services.update_task(grant("task.update", task.project_id), task.pk, at or task.version, changes)


def document(task: Task) -> Mapping[str, Any]:
    """The task as the API shows it, fresh from the database."""
    return queries.view(queries.find(task.project_id, str(task.pk))).document()
