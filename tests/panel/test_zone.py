"""Times are shown in the zone of whoever looks, as their browser names it (panel.md §7)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.utils import timezone

from apps.runs.models import Run
from tests.panel.kit import a_run, a_task, browser
from tests.people import member

pytestmark = pytest.mark.django_db


def page(zone: str | None) -> str:
    owner = member("owner", "ann")
    run = a_run(owner, a_task(owner))
    Run.objects.filter(pk=run.pk).update(created_at=datetime(2026, 7, 1, 22, 30, tzinfo=UTC))
    client = browser(owner)
    if zone is not None:
        client.cookies["ql_zone"] = zone
    answer = client.get("/panel/p/default/runs/")
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize(
    ("zone", "shown"), [("Asia/Shanghai", "2026-07-02 06:30"), ("America/New_York", "2026-07-01 18:30")]
)
def test_times_are_the_visitor_s(zone: str, shown: str) -> None:
    text = page(zone)
    assert shown in text and f"Times are in {zone}" in text
    assert timezone.get_current_timezone() == timezone.get_default_timezone()


@pytest.mark.parametrize("zone", [None, "", "Nowhere/Else", "../../etc/passwd", "x" * 3000])
def test_a_zone_nobody_knows_is_the_installation_s(zone: str | None) -> None:
    assert f"Times are in {timezone.get_default_timezone_name()}" in page(zone)


def test_a_new_schedule_begins_in_the_visitor_s_zone() -> None:
    owner = member("owner", "ann")
    client = browser(owner)
    client.cookies["ql_zone"] = "Australia/Lord_Howe"
    task = a_task(owner)
    text = client.get(f"/panel/p/default/task/{task.slug}/triggers/new/").content.decode()
    assert 'value="Australia/Lord_Howe"' in text
