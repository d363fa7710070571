"""What nobody decided is pointed out before it expires, by the minutes of the project's policy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.approvals import health, queries
from apps.core import clock
from tests import people
from tests.approvals import kit
from tests.conftest import Time

pytestmark = pytest.mark.django_db
MINUTE = 60_000


def gauge(name: str) -> float:
    [found] = [one for one in health.gauges() if one.name == name]
    return float(found.values[""] or 0)


def test_within_the_minutes_of_the_policy(time: Time, django_assert_num_queries: Any) -> None:
    c = kit.cast()
    asker = people.subject(c.admin)
    for id, minutes in (("soon", 20), ("later", 40), ("late", 120)):
        kit.requested(c.agent, id, life_ms=minutes * MINUTE)
    now = clock.now()
    with django_assert_num_queries(2):
        assert queries.to_remind("default", asker) == [now + timedelta(minutes=20)]
    with django_assert_num_queries(2):
        assert queries.expiring(now) == 1
    assert gauge("approvals_expiring") == 1
    kit.policy_of_project(c.admin, remind_before_minutes=60)
    assert len(queries.to_remind("default", asker)) == queries.expiring(now) == 2
    kit.policy_of_project(c.admin, 1, remind_before_minutes=0)
    assert queries.to_remind("default", asker) == [] and queries.expiring(now) == 0


def test_what_is_decided_taken_back_or_over_is_not_pointed_out(time: Time) -> None:
    c = kit.cast()
    for id in ("done", "back", "over"):
        kit.requested(c.agent, id, life_ms=10 * MINUTE)
    assert queries.expiring(clock.now()) == 3
    kit.decide(c.admin, kit.verdict("done"))
    kit.services.withdraw(people.principal(c.agent), "back", origin="tests")
    assert queries.expiring(clock.now()) == 1
    time.advance(10 * MINUTE)
    assert queries.expiring(clock.now()) == 0


def test_projects_each_by_their_own(time: Time) -> None:
    c = kit.cast()
    other = people.project(c.admin, "second")
    people.give(c.agent, "operator", other)
    kit.requested(c.agent, "one", life_ms=20 * MINUTE)
    kit.requested(c.agent, "two", life_ms=20 * MINUTE, project_id=other)
    kit.policy_of_project(c.admin, remind_before_minutes=10)
    assert queries.expiring(clock.now()) == 1
    assert queries.to_remind("default", people.subject(c.admin)) == []
    assert len(queries.to_remind(other, people.subject(c.admin))) == 1
