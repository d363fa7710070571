"""Runs over the API: what a filter may hold."""

from __future__ import annotations

import pytest

from tests.people import api, member
from tests.runs import kit

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("listed", ["runs", "skips", "tasks/one/due"])
@pytest.mark.parametrize("bound", ["since", "until"])
@pytest.mark.parametrize(
    "at",
    [
        "0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00", "0000-00-00", "1",
        # There are such times, but not a day before and behind them.
        "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z",
    ],
)  # fmt: skip
def test_a_time_that_no_calendar_has_is_refused(listed: str, bound: str, at: str) -> None:
    kit.task("one")
    answer = api(member("viewer"))("GET", f"projects/default/{listed}?{bound}={at}")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [bound])
