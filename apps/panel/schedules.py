"""What the list and the page of a task show of its triggers: when it runs next, and by which rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from apps.tasks.models import Task
from apps.triggers import queries
from apps.triggers.models import Trigger


@dataclass(frozen=True)
class Outlook:
    """The triggers of a task, the one that fires first in front, and when that is."""

    triggers: Sequence[Trigger] = ()

    @property
    def next_at(self) -> datetime | None:
        """The next due time, None where nothing is to come."""
        return _at(self.triggers[0]) if self.triggers else None

    @property
    def first(self) -> Trigger | None:
        """The trigger to name where there is room for one."""
        return self.triggers[0] if self.triggers else None

    @property
    def others(self) -> int:
        """How many triggers there are besides the first."""
        return max(0, len(self.triggers) - 1)


NONE = Outlook()


def outlooks(task_ids: Sequence[UUID]) -> dict[UUID, Outlook]:
    """The outlook of each task that has triggers; one query."""
    found = queries.of_tasks(task_ids)
    return {
        task_id: Outlook(sorted(triggers, key=_soonest)) for task_id, triggers in found.items() if triggers
    }


def _at(trigger: Trigger) -> datetime | None:
    """When it fires next; one that is parked waits for something else first."""
    return None if trigger.parked else trigger.fire_at


def _soonest(trigger: Trigger) -> tuple[bool, float, bool, UUID]:
    at = _at(trigger)
    return (at is None, at.timestamp() if at else 0.0, not trigger.enabled, trigger.pk)


def matching(text: str) -> Exists:
    """Tasks with a rule that contains the text, or a trigger of that kind (`boot`, `webhook` …)."""
    rule = Q(schedule__icontains=text) | Q(timezone__icontains=text) | Q(kind=text.lower())
    return Exists(Trigger.objects.filter(rule, task_id=OuterRef("pk")))


def by_next_fire(project_id: str, rows: QuerySet[Task]) -> tuple[QuerySet[Task], QuerySet[Task]]:
    """The tasks that are to fire, `at` being when first, and those that are not."""
    coming = Trigger.objects.filter(task_id=OuterRef("pk"), fire_at__isnull=False, parked=None)
    earlier = Q(fire_at__lt=OuterRef("at")) | Q(fire_at=OuterRef("at"), pk__lt=OuterRef("trigger_pk"))
    # One filter, so that it is one inner join: with an outer one the index over times would be of no use.
    having = (
        rows.filter(triggers__project_id=project_id, triggers__fire_at__isnull=False, triggers__parked=None)
        .annotate(at=F("triggers__fire_at"), trigger_pk=F("triggers__pk"))
        .exclude(Exists(coming.filter(earlier)))
    )
    return having, rows.exclude(Exists(coming))
