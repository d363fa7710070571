"""After an update of the time zone data: next due times that were worked out with the old rules are set anew."""

from __future__ import annotations

from uuid import UUID

from apps.core import bulk, clock, wakeups
from apps.core.db import write_transaction
from apps.core.errors import DomainError
from apps.runs.services import places
from apps.triggers import CHANNEL, planning
from apps.triggers.models import Trigger
from apps.triggers.schedules import rule_of

BATCH = 500
_COLUMNS = ["due_at", "fire_at"]


@write_transaction
def follow_zones(after: UUID | None) -> UUID | None:
    """Looks at up to 500 schedules behind `after`, by id; returns where to go on, None at the end.

    What is due already is left to the scheduler, as is what cannot be read any more.
    """
    rows = Trigger.objects.filter(kind="cron", fire_at__isnull=False).order_by("pk")
    found = list(rows.filter(pk__gt=after)[:BATCH] if after else rows[:BATCH])
    places.lock_tasks({trigger.task_id for trigger in found})
    now = clock.now()
    changed = []
    for trigger in found:
        read = trigger.due_at
        if read is None or read <= now or trigger.parked is not None:
            continue
        try:
            planning.aim(trigger, rule_of(trigger).next(now))
        except DomainError:
            continue
        if trigger.due_at != read:
            changed.append((trigger.pk, trigger.version, read, trigger.due_at, trigger.fire_at))
    # Behind the locks a trigger may be another one than was read; such a one was aimed by whoever changed it.
    bulk.update_rows(Trigger, ["id", "version", "due_at"], _COLUMNS, changed)
    if changed:
        wakeups.nudge(CHANNEL)
    return found[-1].pk if len(found) == BATCH else None
