"""A call of a webhook's address: `POST /hooks/{secret}` (api.md, "Trigger").

Who knows the secret may start the task; where the trigger is signed, only with the right signature over the body.
The address of a secret that never was answers like one that is gone.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext_lazy as _

from apps.core import canonical, clock, db, ids
from apps.core.db import write_transaction
from apps.core.errors import DomainError, InvalidInput, TooLarge, Unavailable
from apps.projects import policy
from apps.projects.errors import ApprovalRequired, ProjectArchived
from apps.projects.policy import Grant
from apps.runs.errors import TaskArchived, TaskDisabled
from apps.runs.models import Skip, SkipReason
from apps.runs.services import Skipped, Started, door, places, start_run
from apps.triggers import asking, drafts, secrets
from apps.triggers.errors import HookNotFound, SignatureInvalid, TriggerDisabled
from apps.triggers.models import Trigger
from apps.triggers.planning import Span
from apps.triggers.services import skips

MAX_BODY = drafts.MAX_INPUT
MAX_DELIVERY = 200
MAX_SECRET = 200
WEBHOOK = "webhook"
_REASONS: dict[type[DomainError], str] = {
    TaskDisabled: "task_disabled",
    TaskArchived: "task_archived",
    ProjectArchived: "project_archived",
    TriggerDisabled: "trigger_disabled",
}


@dataclass(frozen=True)
class Delivery:
    """One call. `delivery_id` is the caller's name for it: the same id starts once."""

    body: bytes = field(repr=False)
    signature: str | None = field(default=None, repr=False)
    delivery_id: str | None = None


@dataclass(frozen=True)
class Asked:
    """No run: the task needs an approval, and this request for one was filed; `replayed` where it was there."""

    approval_id: str
    replayed: bool = False


def find(secret: str) -> Trigger:
    """The webhook of a secret; raises HookNotFound. Always one look-up, and one comparison in constant time."""
    given = secrets.digest(secret[:MAX_SECRET])
    trigger = Trigger.objects.filter(secret_digest=given).first()
    known = trigger.secret_digest if trigger is not None else secrets.digest("")
    if not hmac.compare_digest(known or "", given) or trigger is None:
        raise HookNotFound
    return trigger


def receive(trigger: Trigger, delivery: Delivery) -> Started | Skipped | Asked:
    """Starts the webhook's task with the body as its input, laid over the input of the trigger.

    Of a task that needs an approval one is asked for instead, as who the trigger acts for. Raises TooLarge (over
    64 KiB), SignatureInvalid, InvalidInput for what is no JSON object or no delivery id, and what `start_run` raises,
    ApprovalRequired with a `reason` where none could be asked for; a call that comes to nothing leaves a record.
    """
    if len(delivery.body) > MAX_BODY:
        raise TooLarge
    _check_signature(trigger, delivery)
    if delivery.delivery_id is not None and not ids.is_text_id(delivery.delivery_id, MAX_DELIVERY):
        raise InvalidInput.field("delivery_id", _("1 to 200 characters."))
    given = {**trigger.input, **_read(delivery.body)}
    try:
        if not trigger.enabled:
            raise TriggerDisabled
        return _start(trigger, given, delivery.delivery_id)
    except (TaskDisabled, TaskArchived, ProjectArchived, TriggerDisabled) as error:
        _remember_refusal(trigger, _REASONS[type(error)])
        raise
    except ApprovalRequired as error:
        asked = _ask(trigger, given, delivery.delivery_id)
        if isinstance(asked, str):
            raise ApprovalRequired(**error.extra, reason=asked) from error
        return asked


@write_transaction
def _start(trigger: Trigger, given: dict[str, Any], delivery_id: str | None) -> Started | Skipped:
    result = start_run(
        Grant.system(trigger.project_id, "run.start", WEBHOOK),
        trigger.task_id,
        trigger_type=WEBHOOK,
        input=given or None,
        idempotency_key=None if delivery_id is None else f"hook:{trigger.pk}:{delivery_id}",
        trigger_id=trigger.pk,
    )
    _require_same(trigger)
    if isinstance(result, Started) and not result.replayed:
        Trigger.objects.filter(pk=trigger.pk).update(last_fire_at=clock.now(), last_run_id=result.run.pk)
    return result


@write_transaction
def _ask(trigger: Trigger, given: dict[str, Any], delivery_id: str | None) -> Asked | str:
    """Files the request of one call with its record; or the code of what kept it from that, on record too."""
    policy.confirm(Grant.system(trigger.project_id, "run.start", WEBHOOK))
    places.lock_tasks([trigger.task_id])
    _require_same(trigger)
    occasion = f"hook:{delivery_id}" if delivery_id is not None else f"call:{ids.uuid7()}"
    request_id, now = door.request_id(trigger.pk, occasion), clock.now()
    try:
        with db.savepoint():
            if asking.ask(asking.of(trigger, request_id, given)):
                return Asked(request_id, replayed=True)
    except Unavailable:
        raise
    except DomainError as error:
        _remember_refusal(trigger, SkipReason.APPROVAL_REQUIRED, error.code)
        return error.code
    record = skips.of(trigger, SkipReason.APPROVAL_REQUIRED, Span(1, now, now), now, actor_id=WEBHOOK)
    record.approval_id, record.filing = request_id, door.FILED
    skips.insert([record])
    Trigger.objects.filter(pk=trigger.pk).update(last_fire_at=now)
    return Asked(request_id)


def _require_same(trigger: Trigger) -> None:
    """Behind the lock of the task, which a change of the trigger takes too: what it was found by may be over by now."""
    rows = Trigger.objects.filter(pk=trigger.pk, secret_digest=trigger.secret_digest)
    enabled = rows.values_list("enabled", flat=True).first()
    if enabled is None:
        raise HookNotFound
    if not enabled:
        raise TriggerDisabled


@write_transaction
def _remember_refusal(trigger: Trigger, reason: str, filing: str | None = None) -> None:
    """One row for all refused calls with one reason in a row: whoever knows the address may call it very often."""
    places.lock_tasks([trigger.task_id])
    now = clock.now()
    last = (
        Skip.objects.filter(task_id=trigger.task_id, trigger_id=trigger.pk)
        .order_by("-created_at", "-pk")
        .first()
    )
    if last is None or (last.reason, last.filing) != (reason, filing) or last.scheduled_for is None:
        record = skips.of(trigger, reason, Span(1, now, now), now, actor_id=WEBHOOK)
        record.filing = filing
        skips.insert([record])
    else:
        Skip.objects.filter(pk=last.pk).update(
            count=last.count + 1, last_scheduled_for=max(now, last.scheduled_for)
        )


def _check_signature(trigger: Trigger, delivery: Delivery) -> None:
    if trigger.signing_key_ref is None:
        return
    right = secrets.signature(trigger, delivery.body)
    given = (delivery.signature or "").strip()
    if not hmac.compare_digest(right.encode(), given.encode("utf-8", "replace")):
        raise SignatureInvalid


def _read(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        value = canonical.loads(body.decode())
        canonical.dumps(value)
    except (UnicodeDecodeError, canonical.NotCanonical) as error:
        raise InvalidInput(_("The body is not valid JSON.")) from error
    if not isinstance(value, dict):
        raise InvalidInput(_("The body must be an object."))
    return value
