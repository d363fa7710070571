"""Next due times follow an update of the time zone data."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from apps.triggers import jobs
from apps.triggers.models import Trigger
from apps.triggers.schedules import zones
from apps.triggers.services import reaim
from tests.runs.kit import task
from tests.triggers.kit import clock_at, cron, fresh, interval, utc

pytestmark = pytest.mark.django_db


def test_stale_due_times_are_set_anew_and_nothing_else(time: Any) -> None:
    clock_at(time, "2026-11-30T00:00:30")
    of = task()
    stale, right, due = (cron(of, "0 9 * * *", "Asia/Shanghai") for _ in range(3))
    other = interval(of)
    hour = timedelta(hours=1)
    # As worked out while the zone had another offset.
    Trigger.objects.filter(pk=stale.pk).update(due_at=stale.due_at + hour, fire_at=stale.fire_at + hour)  # type: ignore[operator]
    Trigger.objects.filter(pk=due.pk).update(due_at=utc("2026-11-30"), fire_at=utc("2026-11-30"))
    with patch.object(reaim, "BATCH", 2):
        cursor = jobs.follow_zone_data({})
    assert cursor == {"done": zones.version()}
    assert (fresh(stale).due_at, fresh(stale).fire_at) == (stale.due_at, stale.due_at)
    assert fresh(stale).version == 1
    assert fresh(right).due_at == right.due_at
    assert fresh(due).due_at == utc("2026-11-30")
    assert fresh(other).due_at == other.due_at


def test_goes_through_them_once_per_version(time: Any) -> None:
    cron(task(), "0 9 * * *", "Asia/Shanghai")
    assert jobs.follow_zone_data({"done": zones.version()}) is None
    with patch.object(reaim, "BATCH", 1), patch.object(jobs, "_ROUNDS", 1):
        part = jobs.follow_zone_data({"done": "1999a"})
        assert part is not None and part["version"] == zones.version()
        assert jobs.follow_zone_data(part) == {"done": zones.version()}


def test_a_version_is_known() -> None:
    assert zones.version()
