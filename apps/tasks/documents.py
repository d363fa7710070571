"""The API's form of a task and of a revision (api.md, "Task")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apps.core.clock import rfc3339
from apps.tasks import placement, secrets
from apps.tasks.execution import Body, Command, Execution, Script, Shell
from apps.tasks.models import Task
from apps.tasks.retry import RetryRule
from apps.tasks.revisions import Revision


@dataclass(frozen=True)
class TaskView:
    """A task with its current revision and the environment of that revision."""

    task: Task
    revision: Revision
    env: Mapping[str, str] = field(repr=False)

    def document(self) -> dict[str, Any]:
        """What the API answers."""
        task = self.task
        return {
            "id": str(task.pk),
            "project": {"id": task.project.pk, "slug": task.project.slug},
            "slug": task.slug,
            "name": task.name,
            "description": task.description,
            "enabled": task.enabled,
            "archived_at": rfc3339(task.archived_at) if task.archived_at else None,
            "executor": self.revision.executor_type,
            **execution_document(self.revision.execution, self.env),
            "concurrency": task.concurrency,
            "max_parallel": task.max_parallel,
            "priority": task.priority,
            "retry": task.retry or RetryRule().document(),
            "labels": task.labels,
            "pinned": task.pinned,
            "requires_approval": task.requires_approval,
            "revision": self.revision.task_revision,
            "version": task.version,
            "created_at": rfc3339(task.created_at),
            "updated_at": rfc3339(task.updated_at),
        }


@dataclass(frozen=True)
class RevisionView:
    """A revision of a task with its environment."""

    task: Task
    revision: Revision
    env: Mapping[str, str] = field(repr=False)

    def document(self) -> dict[str, Any]:
        """What the API answers."""
        return {
            "revision": self.revision.task_revision,
            "task": {"id": str(self.task.pk), "slug": self.task.slug},
            "executor": self.revision.executor_type,
            **execution_document(self.revision.execution, self.env),
            "created_at": rfc3339(self.revision.created_at),
            "created_by": {"type": self.revision.created_by[0], "id": self.revision.created_by[1]},
        }


def execution_document(execution: Execution, env: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a task that a revision holds."""
    return {
        **body_document(execution.body),
        "work_dir": execution.work_dir,
        "env": dict(env),
        "secrets": secrets.document(execution.secrets),
        "before": execution.before,
        "after": execution.after,
        "timeout_ms": execution.timeout_ms,
        "kill_grace_ms": execution.kill_grace_ms,
        "log_quota_bytes": execution.log_quota_bytes,
        "requires": placement.document(execution.requires),
        "limits": execution.limits.document(),
    }


def body_document(body: Body) -> dict[str, Any]:
    """The three body fields, two of them null."""
    fields: dict[str, Any] = {"command": None, "shell": None, "script": None}
    match body:
        case Command(argv):
            fields["command"] = list(argv)
        case Shell(text):
            fields["shell"] = text
        case Script(language, source, args):
            fields["script"] = {"language": language, "source": source, "args": list(args)}
    return fields
