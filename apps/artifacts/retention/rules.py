"""Rules of instance, project and task, and what of them holds for a log."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from apps.artifacts.models import RetentionRule
from apps.artifacts.models.retention import (
    KEEP_BYTES_MAX,
    KEEP_BYTES_MIN,
    KEEP_LEAST_MAX,
    KEEP_MOST_MAX,
    KEEP_MS_MAX,
    KEEP_MS_MIN,
)
from apps.audit import services as audit
from apps.core import cas, clock, db
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput, NotFound, VersionConflict
from apps.projects import policy
from apps.projects.models import Project
from apps.projects.policy import Grant
from apps.tasks.models import Task
from qinglong.retention import Retention

PERMISSION = "project.manage"


@dataclass(frozen=True)
class Limits:
    """What somebody keeps: a time in milliseconds, the newest so many, so many bytes, at least so many; None = as
    above it."""

    keep_ms: int | None = None
    keep_most: int | None = None
    keep_bytes: int | None = None
    keep_least: int | None = None


BOUNDS = {
    "keep_ms": (KEEP_MS_MIN, KEEP_MS_MAX),
    "keep_most": (1, KEEP_MOST_MAX),
    "keep_bytes": (KEEP_BYTES_MIN, KEEP_BYTES_MAX),
    "keep_least": (0, KEEP_LEAST_MAX),
}
NAMES = tuple(field.name for field in fields(Limits))


def instance() -> Retention:
    """What holds where nobody said anything."""
    found: Retention = settings.RETENTION
    return found


@dataclass(frozen=True)
class Rules:
    """All rules there are, read once per sweep; `pressure` = the disk is short."""

    projects: dict[str, Limits]
    tasks: dict[UUID, Limits]
    base: Retention
    pressure: bool = False

    def keep_ms(self, project_id: str, task_id: UUID) -> int:
        """How long a log of the task stays after its attempt ended."""
        found = self._first("keep_ms", project_id, task_id)
        keep = self.base.keep_ms if found is None else found
        return min(keep, self.base.pressure_ms) if self.pressure else keep

    def keep_least(self, project_id: str, task_id: UUID) -> int:
        """How many of the task's newest logs stay whatever the other rules say."""
        found = self._first("keep_least", project_id, task_id)
        return self.base.keep_least if found is None else found

    @cached_property
    def shortest_ms(self) -> int:
        """No rule lets a log go earlier."""
        named = [
            one.keep_ms for one in (*self.projects.values(), *self.tasks.values()) if one.keep_ms is not None
        ]
        shortest = min([self.base.keep_ms, *named])
        return min(shortest, self.base.pressure_ms) if self.pressure else shortest

    def _first(self, name: str, project_id: str, task_id: UUID) -> int | None:
        for one in (self.tasks.get(task_id), self.projects.get(project_id)):
            if one is not None and (value := getattr(one, name)) is not None:
                return int(value)
        return None


def load(*, pressure: bool = False) -> Rules:
    """One query."""
    projects: dict[str, Limits] = {}
    tasks: dict[UUID, Limits] = {}
    for rule in RetentionRule.objects.all():
        limits = limits_of(rule)
        if rule.task_id is None:
            projects[rule.project_id] = limits
        else:
            tasks[rule.task_id] = limits
    return Rules(projects, tasks, instance(), pressure)


@dataclass(frozen=True)
class Holding:
    """What holds for a project or task after all rules; milliseconds."""

    keep_ms: int
    keep_least: int
    pressure_ms: int
    history_ms: int


def holding(project_id: str, task_id: UUID | None = None) -> Holding:
    """One query."""
    own = RetentionRule.objects.filter(project_id=project_id)
    named = {rule.task_id: limits_of(rule) for rule in own.filter(Q(task__isnull=True) | Q(task_id=task_id))}
    tasks = {task_id: named[task_id]} if task_id in named and task_id is not None else {}
    found = Rules({project_id: named[None]} if None in named else {}, tasks, instance())
    of = task_id or UUID(int=0)
    keep = found.keep_ms(project_id, of)
    base = found.base
    return Holding(keep, found.keep_least(project_id, of), min(keep, base.pressure_ms), base.history_ms)


def limits_of(rule: RetentionRule) -> Limits:
    """A stored rule without its version."""
    return Limits(**{name: getattr(rule, name) for name in NAMES})


def find(project_id: str, task_id: UUID | None = None) -> RetentionRule:
    """The rule of a project or task; one without any is at version 0."""
    rows = RetentionRule.objects.filter(project_id=project_id)
    rule = (rows.filter(task__isnull=True) if task_id is None else rows.filter(task_id=task_id)).first()
    return rule or RetentionRule(project_id=project_id, task_id=task_id, version=0)


def check(values: dict[str, Any]) -> Limits:
    """Raises InvalidInput for a value out of bounds or a rule that contradicts itself."""
    wrong: dict[str, list[Any]] = {}
    for name, (least, most) in BOUNDS.items():
        value = values.get(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            wrong[name] = [_("A whole number within its bounds is expected.")]
    if wrong:
        raise InvalidInput(fields=wrong)
    limits = Limits(**{name: values.get(name) for name in NAMES})
    if (
        limits.keep_most is not None
        and limits.keep_least is not None
        and limits.keep_least > limits.keep_most
    ):
        raise InvalidInput.field("keep_least", _("At least cannot be more than at most."))
    return limits


@write_transaction
def change(grant: Grant, version: int, limits: Limits, task_id: UUID | None = None) -> RetentionRule:
    """Sets the rule of a project or of one task; version 0 where there is none yet.

    What it would remove says `preview` beforehand. Raises NotFound, VersionConflict and the policy's errors.
    """
    policy.confirm(grant, PERMISSION)
    db.lock(Project.objects.filter(pk=grant.project_id)).first()
    if task_id is not None and not Task.objects.filter(pk=task_id, project_id=grant.project_id).exists():
        raise NotFound
    rule = find(grant.project_id, task_id)
    if rule.version != version:
        raise VersionConflict(rule.version)
    values = {name: getattr(limits, name) for name in NAMES}
    if version and limits_of(rule) == limits:
        return rule
    if version == 0:
        for name, value in {**values, "version": 1, "updated_at": clock.now()}.items():
            setattr(rule, name, value)
        rule.save(force_insert=True)
    else:
        cas.update(
            RetentionRule.objects.filter(pk=rule.pk), version=version, updated_at=clock.now(), **values
        )
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action="retention.changed",
        subject=("project", grant.project_id) if task_id is None else ("task", str(task_id)),
        metadata={name: value for name, value in values.items() if value is not None},
        origin=grant.origin,
    )
    return find(grant.project_id, task_id)


def cutoff(now: datetime, keep_ms: int) -> datetime:
    """The end of the time that is kept; no earlier than the epoch."""
    return max(clock.from_ms(0), now - timedelta(milliseconds=keep_ms))
