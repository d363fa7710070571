"""How runs look from outside (api.md, "Run")."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from rest_framework import serializers

from apps.access.endpoints import ActorSerializer, MomentField, ReferenceSerializer, StrictSerializer
from apps.core import clock
from apps.dispatch.models import RESULTS, RunCancellationDispatch
from apps.dispatch.services.stop_decision import DECISIONS, MAX_REASON
from apps.runs.models import (
    CancelReason,
    MissedCause,
    Run,
    RunAttempt,
    RunEvent,
    RunHold,
    RunStatus,
    Skip,
    SkipReason,
    TriggerType,
)
from apps.runs.services.start import PRIORITY_BOUND
from apps.tasks import placement
from apps.tasks.api import RequiresSerializer


class RunSerializer(StrictSerializer):
    """One start of a task. `waiting_for` says why a run waits: place, worker, labels (nobody has what it
    `requires`), priority or retry; `next_attempt_at` till when it waits to be tried again. `secrets_printed` names the
    secrets that it printed: they are masked in its log, and better replaced. `folded_at`: when an old run's attempts
    and events were folded into this; they answer 410 `history_retained` since."""

    id = serializers.UUIDField()
    project = ReferenceSerializer()
    task = ReferenceSerializer()
    task_name = serializers.CharField()
    task_revision = serializers.CharField()
    status = serializers.ChoiceField(choices=RunStatus.values)
    version = serializers.IntegerField()
    priority = serializers.IntegerField()
    requires = RequiresSerializer()
    trigger_type = serializers.ChoiceField(choices=TriggerType.values)
    trigger = serializers.UUIDField(allow_null=True)
    triggered_by = ActorSerializer()
    parent_run = serializers.UUIDField(allow_null=True)
    retry_of = serializers.UUIDField(allow_null=True)
    idempotency_key = serializers.CharField(allow_null=True)
    scheduled_for = MomentField(allow_null=True)
    created_at = MomentField()
    queued_at = MomentField(allow_null=True)
    started_at = MomentField(allow_null=True)
    finished_at = MomentField(allow_null=True)
    cancel_requested_at = MomentField(allow_null=True)
    cancel_reason = serializers.ChoiceField(choices=CancelReason.values, allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    error_code = serializers.CharField(allow_null=True)
    error_summary = serializers.CharField(allow_null=True)
    attempt_count = serializers.IntegerField()
    next_attempt_at = MomentField(allow_null=True)
    waiting_for = serializers.CharField(allow_null=True)
    secrets_printed = serializers.ListField(child=serializers.CharField())
    folded_at = MomentField(allow_null=True)


_PLAIN = (
    "task_name", "task_revision", "status", "version", "priority", "trigger_type", "cancel_reason", "error_code",
    "error_summary",
)  # fmt: skip
_MOMENTS = (
    "scheduled_for", "created_at", "queued_at", "started_at", "finished_at", "cancel_requested_at",
)  # fmt: skip


class DeliverySerializer(StrictSerializer):
    """How far the delivery of a stop has come; a `blocked` one waits for a decision (`/stop/resolve`)."""

    status = serializers.ChoiceField(choices=RunCancellationDispatch.Status.values)
    result = serializers.ChoiceField(source="last_result", choices=RESULTS, allow_null=True)
    count = serializers.IntegerField(source="dispatch_count")
    next_attempt_at = MomentField(allow_null=True)
    last_dispatched_at = MomentField(allow_null=True)


class EscapedSerializer(StrictSerializer):
    """A process by its identity: a pid alone may come to mean another one."""

    pid = serializers.IntegerField()
    start_ticks = serializers.IntegerField()


class ProofSerializer(StrictSerializer):
    """How a process tree ended: `took_ms` from TERM to the last of them, `killed` where KILL was needed."""

    cause = serializers.ChoiceField(choices=["stop", "deadline", "leftover"])
    processes = serializers.IntegerField()
    took_ms = serializers.IntegerField()
    killed = serializers.BooleanField()
    escaped = EscapedSerializer(many=True)


class EscapedKillSerializer(StrictSerializer):
    """A wish that what escaped is killed; `outcome` says by pid what came of it."""

    requested_at = MomentField()
    done_at = MomentField(allow_null=True)
    processes = EscapedSerializer(many=True)
    outcome = serializers.DictField(child=serializers.CharField(), allow_null=True)


class AttemptStopSerializer(StrictSerializer):
    """Of the stop of an attempt: its delivery, the proof of its end, the wish to kill what escaped."""

    delivery = DeliverySerializer(allow_null=True)
    proof = ProofSerializer(allow_null=True)
    kill = EscapedKillSerializer(allow_null=True)


class AttemptSerializer(StrictSerializer):
    """One try of a run. `stop` is null where nothing of it was stopped."""

    id = serializers.UUIDField()
    attempt = serializers.IntegerField()
    status = serializers.CharField()
    executor = serializers.CharField(source="executor_type")
    worker = serializers.CharField(source="worker_id", allow_null=True)
    pid = serializers.IntegerField(allow_null=True)
    log_artifact_id = serializers.CharField(allow_null=True)
    deadline_at = MomentField(allow_null=True)
    created_at = MomentField()
    started_at = MomentField(allow_null=True)
    finished_at = MomentField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    error_code = serializers.CharField(allow_null=True)
    error_summary = serializers.CharField(allow_null=True)
    stop = AttemptStopSerializer(allow_null=True)


class AttemptListSerializer(StrictSerializer):
    """All attempts of a run, first to last. `ambiguous`: several are under way, and nobody touches them."""

    items = AttemptSerializer(many=True)
    ambiguous = serializers.BooleanField()


class EventSerializer(StrictSerializer):
    """One thing that happened to a run."""

    id = serializers.UUIDField()
    sequence = serializers.IntegerField()
    type = serializers.CharField()
    actor = ActorSerializer()
    attempt = serializers.UUIDField(source="attempt_id", allow_null=True)
    payload = serializers.DictField()
    created_at = MomentField()


class EventListSerializer(StrictSerializer):
    """Events in order; `next_after` continues, null at the present end."""

    items = EventSerializer(many=True)
    next_after = serializers.IntegerField(allow_null=True)


class SkipSerializer(StrictSerializer):
    """Starts that did not happen, and why: `count` due times from `scheduled_for` to `last_scheduled_for`.

    `open` is one that still goes on; `cause` says of missed ones what was in the way. Of one that needs an approval
    `approval` is the id of the request for it, and `filing` is `due` until that is there, `filed`, or the code of what
    kept it from being filed.
    """

    id = serializers.UUIDField()
    project = ReferenceSerializer()
    task = ReferenceSerializer()
    reason = serializers.ChoiceField(choices=SkipReason.values)
    cause = serializers.ChoiceField(choices=MissedCause.values, allow_null=True)
    sentence = serializers.CharField()
    trigger_type = serializers.CharField()
    trigger = serializers.UUIDField(source="trigger_id", allow_null=True)
    triggered_by = ActorSerializer()
    scheduled_for = MomentField(allow_null=True)
    last_scheduled_for = MomentField(allow_null=True)
    count = serializers.IntegerField()
    open = serializers.BooleanField()
    blocking_run = serializers.UUIDField(source="blocking_run_id", allow_null=True)
    approval = serializers.CharField(source="approval_id", allow_null=True)
    filing = serializers.CharField(allow_null=True)
    created_at = MomentField()


class StartSerializer(StrictSerializer):
    """What a run is given: `input` for QINGLONG_INPUT, `args` appended to the task's own."""

    input = serializers.DictField(required=False, allow_null=True)
    args = serializers.ListField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False), required=False, max_length=256
    )
    priority = serializers.IntegerField(
        required=False, allow_null=True, min_value=-PRIORITY_BOUND, max_value=PRIORITY_BOUND
    )


class BreakGlassSerializer(StartSerializer):
    """What starting the task would be sent with, and why it is started without an approval."""

    reason = serializers.CharField(max_length=500)


class PinSerializer(StrictSerializer):
    """Why somebody keeps a run."""

    reason = serializers.CharField(required=False, allow_blank=True, max_length=200, trim_whitespace=False)


class HoldSerializer(StrictSerializer):
    """A reason why a run stays whole: a person's `pin`, or something that still needs it."""

    holder = serializers.CharField()
    holder_id = serializers.CharField()
    reason = serializers.CharField()
    held_by = ActorSerializer()
    created_at = MomentField()


class HoldListSerializer(StrictSerializer):
    """All reasons why a run stays whole, the oldest first; none: the rules decide."""

    items = HoldSerializer(many=True)


class StopSerializer(StrictSerializer):
    """Why somebody stops a run."""

    note = serializers.CharField(required=False, allow_blank=True, max_length=200, trim_whitespace=False)


class ResolveStopSerializer(StrictSerializer):
    """What a person decides about a stop that did not reach its process, and why."""

    decision = serializers.ChoiceField(choices=DECISIONS)
    reason = serializers.CharField(min_length=1, max_length=MAX_REASON)


def represent(
    run: Run,
    attempts: Mapping[UUID, RunAttempt],
    waiting_for: str | None,
    next_attempt_at: datetime | None = None,
) -> dict[str, Any]:
    """A run as the API shows it; written out, since a page of serializers costs more than its queries."""
    attempt = attempts.get(run.pk)
    key = run.idempotency_key
    return {
        "id": str(run.pk),
        "project": {"id": run.project_id, "slug": run.project.slug},
        "task": {"id": str(run.task_id), "slug": run.task.slug},
        **{name: getattr(run, name) for name in _PLAIN},
        "requires": placement.document(run.requires),
        "trigger": _text(run.trigger_id),
        "triggered_by": {"type": run.triggered_by_type, "id": run.triggered_by_id},
        "parent_run": _text(run.parent_run_id),
        "retry_of": _text(run.retry_of_id),
        # Callers see the key as they sent it; the panel's and the triggers' own keys are theirs.
        "idempotency_key": key.removeprefix("api:") if key and key.startswith("api:") else None,
        **{name: _moment(getattr(run, name)) for name in _MOMENTS},
        "exit_code": attempt.exit_code if attempt else None,
        "attempt_count": attempt.attempt if attempt else 0,
        "next_attempt_at": _moment(next_attempt_at),
        "waiting_for": waiting_for,
        "secrets_printed": run.printed,
        # Of an old run whose attempts and events went into a summary; both answer `history_retained` then.
        "folded_at": _moment(getattr(attempt, "folded_at", None)),
    }


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def _moment(value: datetime | None) -> str | None:
    return None if value is None else clock.rfc3339(value)


def represent_hold(hold: RunHold) -> dict[str, Any]:
    """A hold as the API shows it."""
    hold.held_by = {"type": hold.held_by_type, "id": hold.held_by_id}  # type: ignore[attr-defined]
    return dict(HoldSerializer(hold).data)


def represent_event(event: RunEvent) -> dict[str, Any]:
    """An event as the API shows it."""
    event.actor = {"type": event.actor_type, "id": event.actor_id or ""}  # type: ignore[attr-defined]
    return dict(EventSerializer(event).data)


def represent_skip(skip: Skip) -> dict[str, Any]:
    """A skip as the API shows it."""
    skip.triggered_by = {"type": skip.triggered_by_type, "id": skip.triggered_by_id}  # type: ignore[attr-defined]
    skip.sentence = skip.get_cause_display() if skip.cause else skip.get_reason_display()  # type: ignore[attr-defined]
    return dict(SkipSerializer(skip).data)
