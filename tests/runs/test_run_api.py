"""Runs over the API: what a filter may hold."""

from __future__ import annotations

import pytest

from tests.people import api, member

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("listed", ["runs", "skips"])
@pytest.mark.parametrize("bound", ["since", "until"])
@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00", "0000-00-00", "1"]
)
def test_a_time_that_no_calendar_has_is_refused(listed: str, bound: str, at: str) -> None:
    answer = api(member("viewer"))("GET", f"projects/default/{listed}?{bound}={at}")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [bound])
