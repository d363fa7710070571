"""Starting a task: one run, its first attempt, its first events, one ring (runs.md §5.4, §17, api.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Q

from apps.audit import services as audit
from apps.core import canonical, clock, db, ids, wakeups
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput, NotFound
from apps.core.streams import Actor
from apps.projects import policy
from apps.projects.policy import Grant
from apps.runs import payloads
from apps.runs.errors import (
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    RevisionChanged,
    TaskArchived,
    TaskDisabled,
)
from apps.runs.machine import Change
from apps.runs.models import AloneStart, Run, RunAttempt, Skip, SkipReason, TriggerType
from apps.runs.queries import find_by_key
from apps.runs.services import door, places, retrying
from apps.runs.services.cancel import cancel_locked
from apps.runs.services.door import Alone, Approved
from apps.runs.services.writes import RunEvents
from apps.tasks.models import Task, TaskSecret
from apps.vault import resolving
from apps.vault.errors import SecretDisabled

CLUSTER = "runs"
MAX_KEY = 255
PRIORITY_BOUND = 1_000


@dataclass(frozen=True)
class Started:
    """A run; `replayed` when the key had started it before."""

    run: Run
    replayed: bool = False


@dataclass(frozen=True)
class Skipped:
    """No run: the task had no place and skips in that case. The record says what was in the way."""

    skip: Skip


@dataclass(frozen=True)
class Wish:
    """All that a start was asked with."""

    grant: Grant
    trigger_type: str
    input: Mapping[str, Any] | None
    args: Sequence[str]
    priority: int | None
    key: str | None
    digest: str
    scheduled_for: datetime | None
    trigger_id: UUID | None
    retry_of: Run | None
    owner: tuple[str, str] | None
    approved: Approved | None = None
    alone: Alone | None = None


def start_run(
    grant: Grant,
    task_id: UUID,
    *,
    trigger_type: str,
    input: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    priority: int | None = None,
    idempotency_key: str | None = None,
    scheduled_for: datetime | None = None,
    trigger_id: UUID | None = None,
    retry_of: Run | None = None,
    owner: tuple[str, str] | None = None,
    approved: Approved | None = None,
    alone: Alone | None = None,
) -> Started | Skipped:
    """Starts a task, or records why not.

    `input` and `args` together have at most 64 KiB as canonical JSON; `priority` is -1,000 … 1,000 and defaults
    to the task's; a key is 1–255 characters and counts within the project. `alone` matters for a task that needs an
    approval only (`door`). Raises InvalidInput, IdempotencyKeyInvalid, NotFound, TaskArchived, TaskDisabled,
    ApprovalRequired, SecretDisabled, IdempotencyKeyReused, RevisionChanged (of an approved start) or the policy's
    errors.
    """
    if idempotency_key is not None and not ids.is_text_id(idempotency_key, MAX_KEY):
        raise IdempotencyKeyInvalid
    if priority is not None and not -PRIORITY_BOUND <= priority <= PRIORITY_BOUND:
        raise InvalidInput.field("priority", f"A whole number from -{PRIORITY_BOUND} to {PRIORITY_BOUND}.")
    if trigger_type not in TriggerType.values:
        raise InvalidInput.field("trigger_type", "Not a kind of trigger.")
    payloads.check(input, args)
    wish = Wish(
        grant, trigger_type, input, args, priority, idempotency_key,
        request_digest(task_id, input, args, priority, retry_of), scheduled_for, trigger_id, retry_of, owner,
        approved, alone,
    )  # fmt: skip
    return _start(wish, task_id)


def request_digest(
    task_id: UUID,
    input: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    priority: int | None = None,
    retry_of: Run | None = None,
) -> str:
    """What two starts with one key must have in common."""
    request = {
        "task": str(task_id),
        "input": input,
        "args": list(args),
        "priority": priority,
        "retry_of": str(retry_of.pk) if retry_of else None,
    }
    return canonical.digest(request)


@write_transaction
def _start(wish: Wish, task_id: UUID) -> Started | Skipped:
    policy.confirm(wish.grant)
    task = places.lock_tasks([task_id]).get(task_id)
    # Behind the lock: a start with the same key that came a moment before is on record now, and is not to be
    # skipped over or replaced by its own repetition.
    if replay := _replay(wish):
        return replay
    if task is None or task.project_id != wish.grant.project_id:
        raise NotFound
    if task.archived_at is not None:
        raise TaskArchived
    if not task.enabled:
        raise TaskDisabled
    if wish.approved is not None and task.revision.task_revision != wish.approved.task_revision:
        raise RevisionChanged
    record = door.admit(door.Claim(wish.grant, task, wish.key, wish.digest, wish.approved, wish.alone))
    _check_secrets(wish.grant, task)
    now = clock.now() if wish.approved is None else wish.approved.at
    skips = task.concurrency == Task.Concurrency.SKIP and wish.approved is None
    if skips and (blocking := places.oldest_holder(task)):
        skip = skipped(wish, task, blocking.pk, now)
        skip.save(force_insert=True)
        return Skipped(skip)
    if task.concurrency == Task.Concurrency.REPLACE:
        # Locked, so that no worker moves one of them between our look and the end we give it.
        before = places.HOLDS | places.WAITS | Q(status="retry_wait")
        standing = db.lock(Run.objects.filter(before, task_id=task.pk).order_by("pk"))
        cancel_locked(
            list(standing), "policy", now, Actor(wish.grant.actor.type, wish.grant.actor.id), note="replaced"
        )
    try:
        with db.savepoint():
            run = _insert(wish, task, now, record, has_place=places.free(task) > 0)
    except IntegrityError:
        # Another task's start in this project won the key; the unique rule decided the race.
        if replay := _replay(wish):
            return replay
        raise
    _record(wish, run, record)
    if run.holds_place or task.concurrency == Task.Concurrency.REPLACE:
        wakeups.ring(CLUSTER)
    if not run.holds_place:
        places.hand_on_after_commit([task.pk])
    return Started(run)


def _check_secrets(grant: Grant, task: Task) -> None:
    """A start of a task that names secrets takes `secret.use`, and none of them may be disabled.

    What starts by itself is not refused here: its run is made and fails, so that there is something to be seen.
    """
    if not task.revision.uses_secrets:
        return
    policy.confirm_secret_use(grant)
    if grant.fence is not None and resolving.disabled(
        task.project_id, TaskSecret.objects.filter(task=task).values_list("secret_name", flat=True)
    ):
        raise SecretDisabled


def _replay(wish: Wish) -> Started | None:
    if wish.key is None:
        return None
    run = find_by_key(wish.grant.project_id, wish.key)
    if run is None:
        return None
    if run.request_digest != wish.digest:
        raise IdempotencyKeyReused
    return Started(run, replayed=True)


def _insert(wish: Wish, task: Task, now: datetime, record: AloneStart | None, *, has_place: bool) -> Run:
    change = prepare(wish, task, now, has_place=has_place)
    run = change.run
    assert change.attempt is not None
    if record is not None:
        record.run, record.created_at = run, now
        record.save(force_insert=True)
    run.save(force_insert=True)
    change.attempt.save(force_insert=True)
    retrying.admit([run], now)
    RunEvents.insert([(run.pk, 0, change.events)], now)
    return run


def prepare(wish: Wish, task: Task, now: datetime, *, has_place: bool) -> Change:
    """The run, its first attempt and its first events, not stored yet; a given input is sealed already."""
    actor = wish.grant.actor
    starter = actor if wish.approved is None else wish.approved.requested_by
    run = Run(
        project_id=task.project_id,
        task=task,
        task_revision=task.revision.task_revision,
        task_name=task.name,
        retry_of=wish.retry_of,
        trigger_id=wish.trigger_id,
        trigger_type=wish.trigger_type,
        execution_origin="manual" if wish.approved is None else "system",
        triggered_by_type=starter.type,
        triggered_by_id=starter.id,
        request_id=None if wish.approved is None else wish.approved.request_id,
        owner_type=wish.owner[0] if wish.owner else None,
        owner_id=wish.owner[1] if wish.owner else None,
        request_digest=wish.digest,
        scheduled_for=wish.scheduled_for,
        status="created",
        priority=task.priority if wish.priority is None else wish.priority,
        holds_place=has_place,
        requires=task.revision.requires,
        may_retry=retrying.check(task),
        idempotency_key=wish.key,
        created_at=now,
    )
    attempt = RunAttempt(
        run=run, attempt=1, status="claimed", executor_type=task.revision.executor_type, created_at=now
    )
    change = Change(run, attempt)
    teller = Actor(actor.type, actor.id)
    change.tell(
        "attempt.claimed", teller, {"attempt": 1, "executor_type": attempt.executor_type}, "attempt-claimed:1"
    )
    change.move_run("queued", now, teller)
    if wish.input is not None or wish.args:
        run.input_ref = payloads.seal_input(run, wish.input, wish.args)
    return change


def skipped(wish: Wish, task: Task, blocking_run_id: UUID, now: datetime) -> Skip:
    """The record of a start for which the task had no place, not stored yet."""
    return Skip(
        project_id=task.project_id,
        task=task,
        reason=SkipReason.CONCURRENCY,
        trigger_type=wish.trigger_type,
        trigger_id=wish.trigger_id,
        triggered_by_type=wish.grant.actor.type,
        triggered_by_id=wish.grant.actor.id,
        scheduled_for=wish.scheduled_for,
        blocking_run_id=blocking_run_id,
        created_at=now,
    )


def _record(wish: Wish, run: Run, record: AloneStart | None) -> None:
    actor = wish.grant.actor
    if actor.type == "system":
        return
    action = "run.retried" if wish.retry_of else "run.started"
    metadata: dict[str, Any] = {"task": str(run.task_id), "revision": run.task_revision}
    if record is not None:
        action = "run.break_glass" if record.kind == AloneStart.Kind.BREAK_GLASS else "run.started_alone"
        metadata |= {"role": record.role, "policy_version": record.policy_version, "reason": record.reason}
    audit.record(
        run.project_id,
        actor=(actor.type, actor.id),
        action=action,
        subject=("run", str(run.pk)),
        metadata=metadata,
        origin=wish.grant.origin,
    )
