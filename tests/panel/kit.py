"""A signed-in browser and things to look at, for tests of the panel."""

from __future__ import annotations

from typing import Any

from django.test import Client

from apps.access.models import User
from apps.runs.models import Run
from apps.runs.services import Started, start_run
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft, create_task
from tests.people import PASSWORD, grant

LOGIN = "/panel/login/"


def browser(user: User | None = None, *, language: str = "en", csrf: bool = False) -> Client:
    """A browser; signed in where an account is given."""
    client = Client(enforce_csrf_checks=csrf)
    client.cookies["ql_language"] = language
    if user is not None:
        answer = client.post(LOGIN, {"username": user.username, "password": PASSWORD})
        assert answer.status_code == 302, answer.content
    return client


def a_task(owner: User, name: str = "Back up", project_id: str = "default", **fields: Any) -> Task:
    """A shell task."""
    draft = TaskDraft(name=name, **({"shell": "echo hello"} | fields))
    return create_task(grant(owner, "task.create", project_id), draft)


def a_run(owner: User, task: Task, **options: Any) -> Run:
    """A queued run."""
    given = grant(owner, "run.start", task.project_id)
    started = start_run(given, task.pk, trigger_type="manual", **options)
    assert isinstance(started, Started)
    return started.run
