"""What is to happen with a due trigger: every due time is started, missed or still to come, none twice."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from apps.triggers import planning
from apps.triggers.models import Trigger
from apps.triggers.schedules.rules import Rule, between, cron_rule, rule_of
from tests.triggers.kit import utc

BEGIN = utc("2026-03-28T20:00:00")


def trigger(rule: Rule | None = None, **values: object) -> Trigger:
    given = {"kind": "interval", "every_ms": 60_000, "anchor_at": BEGIN, "timezone": "UTC", **values}
    found = Trigger(id=UUID(int=7), **given)
    planning.aim(found, (rule or rule_of(found)).next(BEGIN))
    return found


RULES = st.one_of(
    st.integers(1_000, 4_000_000).map(lambda ms: {"kind": "interval", "every_ms": ms}),
    st.sampled_from(["* * * * * *", "*/7 * * * *", "30 2 * * *", "0 * * * *", "15 1-3 * * *"]).map(
        lambda text: {"kind": "cron", "schedule": text, "timezone": "Europe/Berlin"}
    ),
)


@settings(deadline=None, max_examples=250)
@given(
    RULES,
    st.sampled_from(["skip", "latest", "all"]),
    st.integers(1, 5),
    st.integers(0, 200_000),
    st.sampled_from([0, 0, 500, 90_000, 3_600_000]),
    st.integers(0, 20_000),
)
def test_every_due_time_is_settled_once(
    rule_values: dict[str, object], misfire: str, most: int, grace: int, jitter: int, late_s: int
) -> None:
    found = trigger(
        **{**rule_values, "anchor_at": BEGIN},
        misfire=misfire, catch_up_max=most, misfire_grace_ms=grace, jitter_ms=jitter,
    )  # fmt: skip
    rule = rule_of(found)
    assert found.fire_at is not None and found.due_at is not None
    now = found.fire_at + timedelta(seconds=late_s, milliseconds=3)
    plan = planning.plan(found, rule, now)
    assert plan.starts == sorted(set(plan.starts))
    # Those before the one that comes next are all settled, and only those.
    end = plan.next_due or now + timedelta(days=400)
    settled = list(between(rule, BEGIN, end - timedelta(milliseconds=1)))
    assert set(plan.starts) <= set(settled)
    dropped = sum(span.count for span in plan.missed)
    assert len(plan.starts) + dropped == len(settled)
    cut = now - timedelta(milliseconds=grace)
    # In order: one whose jitter is short waits for one before it whose jitter is long.
    fires = dict(
        zip(settled, accumulate((planning.fires_at(found, due) for due in settled), max), strict=True)
    )
    late = [due for due in plan.starts if fires[due] < cut]
    on_time = len(plan.starts) - len(late)
    if misfire == "skip":
        assert not late
    elif misfire == "latest":
        assert len(late) <= (0 if on_time else 1)
    else:
        assert len(late) <= most
    for span in plan.missed:
        assert span.first == found.due_at and span.last in settled
        inside = [due for due in settled if span.first <= due <= span.last]
        assert len(inside) == span.count and not set(inside) & set(plan.starts)
    if plan.next_due is not None and len(plan.starts) - len(late) < planning.MAX_STARTS:
        assert planning.fires_at(found, plan.next_due) > now


@given(st.integers(0, 3_600_000), st.integers(0, 10_000))
def test_jitter_is_the_same_for_everybody_and_within_its_bound(most: int, minutes: int) -> None:
    due = BEGIN + timedelta(minutes=minutes)
    found = planning.jitter(UUID(int=7), due, most)
    assert timedelta(0) <= found <= timedelta(milliseconds=most)
    assert found == planning.jitter(UUID(int=7), due, most)


def test_jitter_spreads() -> None:
    found = {planning.jitter(UUID(int=number), BEGIN, 1_000) for number in range(200)}
    assert len(found) > 100


def test_a_span_counts_without_walking() -> None:
    rule = cron_rule("* * * * * *", "Europe/Berlin")
    found = planning.span(rule, utc("2020-01-01"), utc("2030-01-01"))
    assert found is not None
    assert found.count == (utc("2030-01-01") - utc("2020-01-01")).total_seconds() + 1
    assert planning.span(rule, utc("2020-01-02"), utc("2020-01-01")) is None
