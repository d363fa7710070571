"""Triggers that fire once for each start of `up`."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from apps.core import clock
from apps.core.db import write_transaction
from apps.triggers.models import Boot, Trigger

KEPT = timedelta(days=90)


@write_transaction
def arm_boot(boot_id: UUID) -> bool:
    """Makes all enabled boot triggers due, the first time that this start of `up` is seen; else nothing.

    A scheduler that is started again within the same `up` finds the start on record.
    """
    now = clock.now()
    _boot, fresh = Boot.objects.get_or_create(pk=boot_id, defaults={"created_at": now})
    if not fresh:
        return False
    Trigger.objects.filter(kind="boot", enabled=True).update(due_at=now, fire_at=now)
    Boot.objects.filter(created_at__lt=now - KEPT).delete()
    return True
