"""Making, changing and deleting triggers; each is one transaction with its audit entry (api.md, "Trigger").

Whoever does it needs `task.update` and `run.start`, and `secret.use` where the task names secrets: these rights are
checked now, and the schedule fires later as `system/scheduler`.
Everything is written under the lock of the task, as the scheduler does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import cas, clock, ids, wakeups
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput, NotFound, VersionConflict
from apps.projects import policy
from apps.projects.policy import Grant
from apps.runs.services import places
from apps.tasks.errors import TaskArchived
from apps.tasks.models import Task
from apps.triggers import CHANNEL, drafts, planning, secrets
from apps.triggers.drafts import TriggerDraft
from apps.triggers.errors import TooManyTriggers, TriggerNotFound
from apps.triggers.models import Kind, Trigger, TriggerRevision
from apps.triggers.schedules import rule_of
from apps.triggers.services import skips

MAX_PER_TASK = 50
_TIMING = (*drafts.RULE, "jitter_ms")


@dataclass(frozen=True)
class Made:
    """A trigger, and what is shown once: a webhook's secret and, where it is signed, the key of its signatures."""

    trigger: Trigger
    secret: str | None = field(default=None, repr=False)
    signing_key: str | None = field(default=None, repr=False)


@write_transaction
def create_trigger(grant: Grant, start: Grant, task_id: UUID, draft: TriggerDraft) -> Made:
    """Makes a trigger of a task.

    Raises InvalidInput, ScheduleInvalid, NotFound, TaskArchived, TooManyTriggers and what `policy.confirm` raises.
    """
    task = _task(grant, start, task_id)
    if Trigger.objects.filter(task=task).count() >= MAX_PER_TASK:
        raise TooManyTriggers
    values = draft.cleaned()
    signed = values.pop("signed", False)
    now = clock.now()
    trigger = Trigger(
        project_id=task.project_id, task=task, created_at=now, updated_at=now,
        author_type=grant.actor.type, author_id=grant.actor.id,
        **{"timezone": "UTC", **values},
    )  # fmt: skip
    _check_future(trigger, now)
    secret, key = secrets.fresh(trigger, signed=signed) if trigger.kind == "webhook" else (None, None)
    _aim(trigger, now)
    trigger.save(force_insert=True)
    _remember(trigger, grant, now)
    _record(grant, "trigger.created", trigger, {"kind": trigger.kind, **_told(trigger)})
    return Made(trigger, secret, key)


@write_transaction
def change_trigger(
    grant: Grant, start: Grant, task_id: UUID, trigger_id: UUID, version: int, changes: Mapping[str, Any]
) -> Trigger:
    """Replaces the named fields; None is a field's default. Where nothing changes the version stays.

    A changed rule, and one that is enabled again, counts from now: nothing of the past is started. Raises
    InvalidInput, ScheduleInvalid, NotFound, TriggerNotFound, VersionConflict, TaskArchived and the policy's errors.
    """
    task = _task(grant, start, task_id)
    trigger = _locked(task, trigger_id, version)
    values = _changed(trigger, changes)
    if not values:
        return trigger
    now, fields = clock.now(), sorted(values)
    aimed_anew = any(name in values for name in (*_TIMING, "enabled"))
    if aimed_anew:
        skips.close(trigger, now)
    for name, value in values.items():
        setattr(trigger, name, value)
    if "at" in values or values.get("enabled"):
        _check_future(trigger, now)
    if aimed_anew:
        _aim(trigger, now)
    values |= {name: getattr(trigger, name) for name in ("due_at", "fire_at", "parked")}
    values |= {"author_type": grant.actor.type, "author_id": grant.actor.id, "updated_at": now}
    rows = Trigger.objects.filter(pk=trigger.pk)
    cas.update(rows, version=version, **values)
    changed = rows.select_related("task").get()
    _remember(changed, grant, now)
    if fields == ["enabled"]:
        action = "trigger.enabled" if changed.enabled else "trigger.disabled"
    else:
        action = "trigger.changed"
    _record(grant, action, changed, {"fields": fields, **_told(changed)})
    return changed


@write_transaction
def delete_trigger(grant: Grant, start: Grant, task_id: UUID, trigger_id: UUID, version: int) -> None:
    """Deletes a trigger; what it started, what it skipped and what its rules were stays.

    Raises NotFound, TriggerNotFound, VersionConflict and the policy's errors.
    """
    task = _task(grant, start, task_id, archived_too=True)
    trigger = _locked(task, trigger_id, version)
    now = clock.now()
    skips.close(trigger, now)
    trigger.version += 1
    trigger.enabled = False
    _remember(trigger, grant, now, deleted=True)
    _record(grant, "trigger.deleted", trigger, {"kind": trigger.kind})
    secrets.forget(trigger)
    Trigger.objects.filter(pk=trigger.pk).delete()


@write_transaction
def renew_secret(grant: Grant, start: Grant, task_id: UUID, trigger_id: UUID, version: int) -> Made:
    """A new secret for a webhook, and a new key where it is signed; the old ones are dead at once.

    Raises InvalidInput for other kinds, NotFound, TriggerNotFound, VersionConflict, TaskArchived, policy errors.
    """
    trigger = _locked(_task(grant, start, task_id), trigger_id, version)
    if trigger.kind != "webhook":
        raise InvalidInput(_("Only a webhook has a secret."))
    signed = trigger.signing_key_ref is not None
    secrets.forget(trigger)
    secret, key = secrets.fresh(trigger, signed=signed)
    rows = Trigger.objects.filter(pk=trigger.pk)
    cas.update(
        rows, version=version, updated_at=clock.now(), secret_digest=trigger.secret_digest,
        signing_key_ref=trigger.signing_key_ref,
    )  # fmt: skip
    changed = rows.select_related("task").get()
    _remember(changed, grant, clock.now())
    _record(grant, "trigger.secret_renewed", changed, {})
    return Made(changed, secret, key)


def _task(grant: Grant, start: Grant, task_id: UUID, *, archived_too: bool = False) -> Task:
    policy.confirm(grant, "task.update")
    if start.project_id != grant.project_id:
        raise NotFound
    policy.confirm(start, "run.start")
    task = places.lock_tasks([task_id]).get(task_id)
    if task is None or task.project_id != grant.project_id:
        raise NotFound
    if task.archived_at is not None and not archived_too:
        raise TaskArchived
    if not archived_too and task.revision.uses_secrets:
        policy.confirm_secret_use(start)
    return task


def _locked(task: Task, trigger_id: UUID, version: int) -> Trigger:
    trigger = Trigger.objects.filter(pk=trigger_id, task=task).first()
    if trigger is None:
        raise TriggerNotFound
    if trigger.version != version:
        raise VersionConflict(trigger.version)
    trigger.task = task
    return trigger


def _changed(trigger: Trigger, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields whose value is another one afterwards, checked."""
    known = (*drafts.RULE, *drafts.POLICY)
    unknown = [str(name)[:64] for name in changes if name not in (*known, "kind", "signed")]
    if unknown:
        raise InvalidInput(fields={name: [_("There is no such field.")] for name in unknown})
    fixed = {"kind": trigger.kind, "signed": trigger.signing_key_ref is not None}
    if wrong := [name for name, value in fixed.items() if name in changes and changes[name] != value]:
        raise InvalidInput(
            fields={
                name: [_("This is decided when the trigger is made; make another one.")] for name in wrong
            }
        )
    own = drafts.OF_KIND[Kind(trigger.kind)]
    offered = {
        name: value
        for name, value in changes.items()
        # What belongs to other kinds may stay as it is shown.
        if name in known and (name not in drafts.RULE or name in own or value != getattr(trigger, name))
    }
    values = drafts.clean(trigger.kind, offered)
    return {name: value for name, value in values.items() if getattr(trigger, name) != value}


def _check_future(trigger: Trigger, now: datetime) -> None:
    if trigger.kind == "once" and trigger.enabled and trigger.at is not None and trigger.at <= now:
        raise InvalidInput.field("at", _("This time has passed already."))


def _aim(trigger: Trigger, now: datetime) -> None:
    """Has the trigger wait for its first due time after now; none where it is disabled."""
    trigger.parked = None
    planning.aim(trigger, rule_of(trigger).next(now) if trigger.enabled else None)
    wakeups.nudge(CHANNEL)


def _rule(trigger: Any) -> dict[str, Any]:
    return {name: getattr(trigger, name) for name in ("kind", *_TIMING)}


def _remember(trigger: Trigger, grant: Grant, now: datetime, *, deleted: bool = False) -> None:
    TriggerRevision.objects.create(
        id=ids.uuid7(), project_id=trigger.project_id, task_id=trigger.task_id, trigger_id=trigger.pk,
        version=trigger.version, enabled=trigger.enabled, deleted=deleted, changed_by_type=grant.actor.type,
        changed_by_id=grant.actor.id, created_at=now, **_rule(trigger),
    )  # fmt: skip


def _told(trigger: Trigger) -> dict[str, Any]:
    """The rule as the audit trail keeps it; the input is no business of the trail."""
    found = {name: value for name, value in _rule(trigger).items() if value is not None}
    return {
        name: clock.rfc3339(value) if isinstance(value, datetime) else value for name, value in found.items()
    }


def _record(grant: Grant, action: str, trigger: Trigger, metadata: Mapping[str, Any]) -> None:
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action=action,
        subject=("trigger", str(trigger.pk)),
        metadata={"task": str(trigger.task_id), **metadata},
        origin=grant.origin,
    )
