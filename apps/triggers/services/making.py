"""A task together with what starts it: made in one step, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apps.core.db import write_transaction
from apps.projects import policy
from apps.projects.policy import Grant
from apps.tasks import queries
from apps.tasks.errors import SlugTaken
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft, create_task
from apps.triggers.drafts import TriggerDraft
from apps.triggers.services.changes import create_trigger


@dataclass(frozen=True)
class Rights:
    """The grants for `task.create`, `task.update` and `run.start`; the last two only where triggers are made."""

    create: Grant
    update: Grant | None = None
    start: Grant | None = None


@write_transaction
def make_task(
    rights: Rights,
    draft: TaskDraft,
    triggers: Sequence[TriggerDraft] = (),
    *,
    example: str | None = None,
    key: str | None = None,
) -> Task:
    """Makes a task with its triggers, or finds what the same `key` made before.

    Raises what `create_task` and `create_trigger` raise.
    """
    policy.confirm(rights.create, "task.create")
    project_id = rights.create.project_id
    if key is not None and (made := queries.made_by(project_id, key)) is not None:
        return made
    try:
        task = create_task(rights.create, draft, example=example, key=key)
    except SlugTaken:
        # Somebody else's name, or the same form sent at the same moment by a second click.
        if key is not None and (made := queries.made_by(project_id, key)) is not None:
            return made
        raise
    for trigger in triggers:
        assert rights.update is not None and rights.start is not None
        create_trigger(rights.update, rights.start, task.pk, trigger)
    return task
