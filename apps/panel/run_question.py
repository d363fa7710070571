"""What a list of runs is asked for, read from its address; what cannot be read is left out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.http import QueryDict
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import pgettext_lazy

from apps.core import clock
from apps.core.errors import DomainError
from apps.runs.models import RunStatus, TriggerType
from apps.runs.queries import RunFilter
from apps.tasks import queries as tasks
from apps.tasks.models import Task

SPANS: tuple[tuple[str, timedelta, Promise], ...] = (
    ("1h", timedelta(hours=1), pgettext_lazy("time span", "Last hour")),
    ("24h", timedelta(hours=24), pgettext_lazy("time span", "Last 24 hours")),
    ("7d", timedelta(days=7), pgettext_lazy("time span", "Last 7 days")),
)


@dataclass(frozen=True)
class RunQuestion:
    """The filter, and what its form shows. `since` and `until` are in the panel's zone, as a date field writes them."""

    filter: RunFilter
    statuses: tuple[str, ...] = ()
    trigger: str = ""
    person: str = ""
    task: Task | None = None
    task_text: str = ""
    span: str = ""
    since: str = ""
    until: str = ""
    spans: tuple[tuple[str, timedelta, Promise], ...] = SPANS

    @property
    def unknown_task(self) -> bool:
        return bool(self.task_text) and self.task is None

    @property
    def narrowed(self) -> bool:
        """Whether anything is left out."""
        return bool(
            self.statuses
            or self.trigger
            or self.person
            or self.task_text
            or self.span
            or self.since
            or self.until
        )

    @property
    def timed(self) -> bool:
        return bool(self.span or self.since or self.until)

    @classmethod
    def read(cls, sent: QueryDict, project_id: str) -> RunQuestion:
        """The question of an address; at most two queries, for the task."""
        statuses = tuple(dict.fromkeys(one for one in sent.getlist("status") if one in RunStatus.values))
        trigger = sent.get("trigger", "")
        trigger = trigger if trigger in TriggerType.values else ""
        person, text = sent.get("person", "")[:128], sent.get("task", "").strip()[:255]
        task = _task(project_id, text) if text else None
        span = sent.get("span", "")
        length = next((length for name, length, _word in SPANS if name == span), None)
        since, until = _moment(sent.get("since", "")), _moment(sent.get("until", ""))
        # Cut to the minute, so that a cursor of this list still fits it a moment later.
        begin = clock.now().replace(second=0, microsecond=0) - length if length else since
        return cls(
            filter=RunFilter(
                task_id=task.pk if task else None,
                statuses=statuses,
                trigger_type=trigger or None,
                since=begin,
                until=until,
                person_id=person or None,
            ),
            statuses=statuses,
            trigger=trigger,
            person=person,
            task=task,
            task_text=text,
            span=span if length else "",
            since=sent.get("since", "") if since else "",
            until=sent.get("until", "") if until else "",
        )


def _task(project_id: str, text: str) -> Task | None:
    """The task with this id or short name, else with this very name."""
    try:
        return tasks.find(project_id, text)
    except DomainError:
        return (
            Task.objects.filter(project_id=project_id, name=text)
            .order_by("archived_at", "-created_at")
            .first()
        )


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else timezone.make_aware(found)
