"""The way from an empty panel to the first green run: which steps are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apps.runs.models import Run
from apps.tasks.models import Task
from apps.triggers import examples


@dataclass(frozen=True)
class FirstMinute:
    """The newest task and run of a project, if there are any, and the examples that can be run."""

    task: Task | None
    run: Run | None
    examples: Sequence[Task]

    @property
    def over(self) -> bool:
        """Whether a run succeeded: there is nothing left to show the way to."""
        return self.run is not None and self.run.status == "succeeded"


def state(project_id: str) -> FirstMinute:
    """How far a project has come; four queries. `run` is the newest that succeeded, else the newest."""
    runs = Run.objects.filter(project_id=project_id).order_by("-created_at", "-id")
    rows = Task.objects.filter(project_id=project_id, archived_at=None)
    newest, green = runs.first(), runs.filter(status="succeeded").first()
    return FirstMinute(
        rows.order_by("-created_at", "-id").first(),
        green or newest,
        list(examples.of_project(project_id).values()),
    )
