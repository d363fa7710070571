"""A task together with what starts it: made in one step, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apps.core.db import write_transaction
from apps.projects.policy import Grant
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
    rights: Rights, draft: TaskDraft, triggers: Sequence[TriggerDraft] = (), *, example: str | None = None
) -> Task:
    """Makes a task with its triggers. Raises what `create_task` and `create_trigger` raise."""
    task = create_task(rights.create, draft, example=example)
    for trigger in triggers:
        assert rights.update is not None and rights.start is not None
        create_trigger(rights.update, rights.start, task.pk, trigger)
    return task
