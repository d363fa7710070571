"""Due times through clock changes, month ends and leap years (lessons D1, D2; api.md, "Trigger")."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.triggers.errors import ScheduleInvalid
from apps.triggers.schedules import IntervalRule, OnceRule, zones
from apps.triggers.schedules.rules import between, cron_rule
from tests.triggers.kit import utc
from tests.triggers.walker import Walker

# North, south (clocks the other way round), half an hour, one that goes at midnight, one that goes for Ramadan,
# one that gave it up, and none at all.
ZONES = (
    "Europe/Berlin", "America/New_York", "Australia/Sydney", "Australia/Lord_Howe", "America/Havana",
    "Africa/Casablanca", "America/Santiago", "Pacific/Chatham", "Asia/Shanghai",
)  # fmt: skip
RULES = (
    "30 2 * * *", "0 2 * * *", "15,45 1,2 * * *", "0 0 * * *", "*/7 * * * *", "0 * * * *", "30 */2 * * *",
    "*/20 2 * * *",
    "10-50/20 1-3 * * *", "0 3 * * 0", "45 2 1-7 * 0", "59 23 28-31 * *", "0 2 */2 * 6", "* 2 * * *",
    "29 2 * 3,4,9-11 *",
)  # fmt: skip


def due(expression: str, zone: str, since: str, until: str) -> list[str]:
    """Local times with offset, as the zone's clocks show them."""
    found = between(cron_rule(expression, zone), utc(since), utc(until))
    return [at.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z") for at in found]


class TestClocksForward:
    """Europe/Berlin, 29 March 2026: 02:00 → 03:00."""

    SPAN = ("Europe/Berlin", "2026-03-28T12:00", "2026-03-29T12:00")

    def test_a_fixed_time_that_is_left_out_is_due_right_behind_the_gap(self) -> None:
        assert due("30 2 * * *", *self.SPAN) == ["29 03:00+0200"]
        assert due("0 2 * * *", *self.SPAN) == ["29 03:00+0200"]

    def test_several_of_them_are_due_once(self) -> None:
        assert due("0,20,40 2 * * *", *self.SPAN) == ["29 03:00+0200"]
        assert due("30 2,3 * * *", *self.SPAN) == ["29 03:00+0200", "29 03:30+0200"]
        assert due("0 2,3 * * *", *self.SPAN) == ["29 03:00+0200"]

    def test_steps_and_stars_go_by_the_clock(self) -> None:
        assert due("*/30 1-3 * * *", *self.SPAN) == [
            "29 01:00+0100", "29 01:30+0100", "29 03:00+0200", "29 03:30+0200",
        ]  # fmt: skip
        assert due("*/30 2 * * *", *self.SPAN) == []
        assert due("0 2-4/2 * * *", *self.SPAN) == ["29 04:00+0200"]

    def test_seconds_too(self) -> None:
        rule = cron_rule("15 30 2 * * *", "Europe/Berlin")
        assert rule.next(utc("2026-03-28T12:00")) == utc("2026-03-29T01:00:00")


class TestClocksBack:
    """Europe/Berlin, 25 October 2026: 03:00 → 02:00."""

    SPAN = ("Europe/Berlin", "2026-10-24T12:00", "2026-10-25T12:00")

    def test_a_fixed_time_that_comes_twice_is_due_once(self) -> None:
        assert due("30 2 * * *", *self.SPAN) == ["25 02:30+0200"]
        assert due("0 2,3 * * *", *self.SPAN) == ["25 02:00+0200", "25 03:00+0100"]

    def test_steps_and_stars_go_by_the_clock(self) -> None:
        assert due("*/30 2 * * *", *self.SPAN) == [
            "25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100",
        ]  # fmt: skip
        assert due("0 * * * *", "Europe/Berlin", "2026-10-24T23:30", "2026-10-25T02:30") == [
            "25 02:00+0200", "25 02:00+0100", "25 03:00+0100",
        ]  # fmt: skip


class TestOtherZones:
    def test_half_an_hour(self) -> None:
        """Lord Howe goes forward by 30 minutes: 02:00 → 02:30, and back in April."""
        span = ("Australia/Lord_Howe", "2026-10-03T06:00", "2026-10-04T06:00")
        assert due("15 2 * * *", *span) == ["04 02:30+1100"]
        assert due("45 2 * * *", *span) == ["04 02:45+1100"]
        assert due("*/15 2 * * *", *span) == ["04 02:30+1100", "04 02:45+1100"]
        back = ("Australia/Lord_Howe", "2026-04-04T06:00", "2026-04-05T06:00")
        assert due("45 1 * * *", *back) == ["05 01:45+1100"]
        assert due("*/15 1 * * *", *back) == [
            "05 01:00+1100", "05 01:15+1100", "05 01:30+1100", "05 01:45+1100", "05 01:30+1030", "05 01:45+1030",
        ]  # fmt: skip

    def test_midnight_that_does_not_exist(self) -> None:
        """Havana skips 00:00–01:00: the daily start of that day is at one o'clock, on the same day."""
        span = ("America/Havana", "2026-03-07T12:00", "2026-03-09T12:00")
        assert due("@daily", *span) == ["08 01:00-0400", "09 00:00-0400"]
        assert due("* 0 8 * *", *span) == []

    def test_a_day_that_does_not_exist(self) -> None:
        """Samoa had no 30 December 2011. So long a change is a clock that was set: nothing is made good."""
        span = ("Pacific/Apia", "2011-12-29T12:00", "2012-01-01T12:00")
        assert due("0 9 * * *", *span) == ["29 09:00-1000", "31 09:00+1400", "01 09:00+1400"]

    def test_a_zone_that_gave_it_up(self) -> None:
        """Turkey went forward in March 2016 and stayed."""
        assert due("30 3 * * *", "Europe/Istanbul", "2016-03-26T12:00", "2016-03-27T12:00") == [
            "27 04:00+0300"
        ]
        assert due("30 3 * * *", "Europe/Istanbul", "2016-10-29T12:00", "2016-10-31T12:00") == [
            "30 03:30+0300", "31 03:30+0300",
        ]  # fmt: skip

    def test_zone_names(self) -> None:
        from apps.core.errors import InvalidInput

        for bad in (
            "",
            " ",
            "Mars/Phobos",
            "../etc/passwd",
            "/usr/share/zoneinfo/UTC",
            "UTC ",
            "+08:00",
            5,
            None,
            "a\0b",
            "Europe",
        ):
            with pytest.raises(InvalidInput):
                zones.zone(bad)
        assert zones.zone("Asia/Kathmandu").key == "Asia/Kathmandu"


class TestCalendar:
    def test_leap_years(self) -> None:
        rule = cron_rule("0 0 29 2 *", "UTC")
        assert [at.year for at in between(rule, utc("2026-01-01"), utc("2041-01-01"))] == [
            2028,
            2032,
            2036,
            2040,
        ]
        assert rule.next(utc("2096-03-01")) == utc("2104-02-29"), "2100 has none"

    def test_a_leap_day_on_a_monday(self) -> None:
        rule = cron_rule("0 0 29 2 */7", "UTC")
        assert rule.next(utc("2026-01-01")) == utc("2032-02-29"), "29 February 2032 is a Sunday"

    def test_month_ends(self) -> None:
        rule = cron_rule("0 0 31 * *", "UTC")
        found = [at.month for at in between(rule, utc("2026-01-01"), utc("2027-01-01"))]
        assert found == [1, 3, 5, 7, 8, 10, 12]
        rule = cron_rule("0 0 29-31 2 *", "UTC")
        assert [at.day for at in between(rule, utc("2028-01-01"), utc("2028-12-31"))] == [29]

    def test_day_or_weekday(self) -> None:
        found = list(between(cron_rule("0 0 13 * 5", "UTC"), utc("2026-02-01"), utc("2026-02-28")))
        assert [at.day for at in found] == [6, 13, 20, 27]
        both = list(between(cron_rule("0 0 */13 * 5", "UTC"), utc("2026-02-01"), utc("2026-03-31")))
        assert [(at.month, at.day) for at in both] == [(2, 27), (3, 27)]

    def test_far_future_ends(self) -> None:
        assert cron_rule("0 0 1 1 *", "UTC").next(utc("9998-06-01")) is None


def changes_of(zone: str, first: int, last: int) -> list[datetime]:
    tz = ZoneInfo(zone)
    found = zones.changes(tz, datetime(first, 1, 1, tzinfo=UTC), datetime(last, 1, 1, tzinfo=UTC))
    return [change.at for change in found]


@pytest.mark.parametrize("zone", ZONES)
def test_minute_by_minute_round_every_clock_change_of_ten_years(zone: str) -> None:
    """Against a walker of our own that lives through each minute as Debian's cron does."""
    moments = changes_of(zone, 2026, 2036) or [utc("2026-03-29T01:00")]
    compared = 0
    for number, expression in enumerate(RULES):
        rule, walker = cron_rule(expression, zone), Walker(expression, zone)
        # Each rule at every third change: all changes, all rules, in a bearable time.
        for at in moments[number % 3 :: 3]:
            since = at.replace(minute=0, second=0) - timedelta(hours=30)
            until = since + timedelta(hours=56)
            right = walker.between(since, until)
            assert list(between(rule, since, until)) == right, (expression, at)
            assert rule.count(since, until) == len(right), (expression, at)
            assert rule.latest(since, until, 5) == right[-5:], (expression, at)
            compared += len(right)
    assert compared > 30


@pytest.mark.parametrize(
    ("zone", "year"),
    [
        ("Europe/Istanbul", 2016), ("America/Sao_Paulo", 2018), ("Asia/Pyongyang", 2015), ("Asia/Pyongyang", 2018),
        ("America/Mexico_City", 2022), ("Asia/Tehran", 2022), ("Europe/Volgograd", 2018), ("Asia/Kathmandu", 1985),
        ("America/Caracas", 2016), ("Asia/Amman", 2022),
    ],
)  # fmt: skip
def test_zones_whose_rules_were_changed(zone: str, year: int) -> None:
    moments = changes_of(zone, year, year + 2)
    assert moments
    for expression in (
        "15 0 * * *",
        "40 23 * * *",
        "30 2 * * *",
        "*/20 0-3 * * *",
        "10 * * * *",
        "59 1,23 * * *",
    ):
        rule, walker = cron_rule(expression, zone), Walker(expression, zone)
        for at in moments:
            since = at.replace(minute=0, second=0) - timedelta(hours=30)
            until = since + timedelta(hours=56)
            assert list(between(rule, since, until)) == walker.between(since, until), (expression, at)
            assert rule.count(since, until) == len(walker.between(since, until))


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Pacific/Auckland", "Asia/Shanghai", "UTC"]
)
def test_ten_years_against_cronsim(zone: str) -> None:
    """Five fields, where both mean the same: cronsim takes a step like `0-30/10` for a fixed time, we do not."""
    rnd = random.Random(zone)
    since, until = utc("2026-01-01T00:00:30"), utc("2036-01-01")
    for _ in range(6):
        expression = " ".join([
            rnd.choice(["0", "30", "5,35", "59"]),
            rnd.choice(["2", "0", "1,2,3", "23", "*/8", "1-3"]),
            rnd.choice(["*", "1", "29-31", "*/9", "15"]),
            rnd.choice(["*", "2", "3,10", "*/5"]),
            rnd.choice(["*", "0", "1-5", "7", "*/3"]),
        ])  # fmt: skip
        try:
            rule = cron_rule(expression, zone)
        except ScheduleInvalid:
            continue
        other = CronSim(expression, since.astimezone(ZoneInfo(zone)))
        right: list[datetime] = []
        for at in other:
            moment = at.astimezone(UTC)
            if moment > until:
                break
            if not right or moment > right[-1]:
                right.append(moment)
        assert list(between(rule, since, until)) == right, expression
        assert rule.count(since, until) == len(right), expression


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        value.map(str),
        st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.lists(value, min_size=2, max_size=3).map(lambda values: ",".join(map(str, values))),
        st.integers(2, (high - low) // 2).map(lambda step: f"*/{step}"),
    )


RULE = st.tuples(_field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 6)).map(" ".join)
MOMENT = st.integers(1_700_000_000_000, 1_950_000_000_000).map(
    lambda ms: datetime.fromtimestamp(ms / 1000, UTC).replace(microsecond=0)
)


@settings(deadline=None, max_examples=150)
@given(RULE, st.booleans(), st.sampled_from(ZONES), MOMENT)
def test_next_count_and_latest_agree(rule_text: str, seconds: bool, zone: str, start: datetime) -> None:
    rule = cron_rule(f"*/20 {rule_text}" if seconds else rule_text, zone)
    found: list[datetime] = []
    at: datetime | None = start
    for _ in range(12):
        assert at is not None
        at = rule.next(at)
        if at is None:
            break
        assert at > (found[-1] if found else start)
        found.append(at)
    if found:
        assert rule.count(start, found[-1]) == len(found)
        assert rule.latest(start, found[-1], 4) == found[-4:]
        assert rule.next(found[-1] - timedelta(milliseconds=1)) == found[-1]


@settings(deadline=None, max_examples=60)
@given(RULE, st.sampled_from(ZONES), st.integers(0, 23), st.data())
def test_any_rule_minute_by_minute_at_a_change(
    rule_text: str, zone: str, shift: int, data: st.DataObject
) -> None:
    moments = changes_of(zone, 2026, 2030) or [utc("2027-06-01")]
    at = data.draw(st.sampled_from(moments)).replace(minute=0, second=0)
    since, until = at - timedelta(hours=shift), at + timedelta(hours=20)
    right = Walker(rule_text, zone).between(since, until)
    rule = cron_rule(rule_text, zone)
    assert list(between(rule, since, until)) == right
    assert rule.count(since, until) == len(right)


class TestIntervals:
    def test_the_grid_of_the_anchor(self) -> None:
        rule = IntervalRule(utc("2026-01-01T00:00:05"), 90_000)
        assert rule.next(utc("2025-01-01")) == utc("2026-01-01T00:00:05")
        assert rule.next(utc("2026-01-01T00:00:05")) == utc("2026-01-01T00:01:35")
        assert rule.count(utc("2026-01-01"), utc("2026-01-02")) == 960
        assert rule.latest(utc("2026-01-01"), utc("2026-01-02"), 2) == [
            utc("2026-01-01T23:57:05"), utc("2026-01-01T23:58:35"),
        ]  # fmt: skip
        assert rule.count(utc("2026-01-02"), utc("2026-01-01")) == 0
        assert rule.latest(utc("2025-01-01"), utc("2025-02-01"), 9) == []

    @given(st.integers(1_000, 10**9), st.integers(0, 10**12), st.integers(0, 10**12))
    def test_agree(self, every: int, offset: int, length: int) -> None:
        anchor = utc("2026-01-01")
        rule = IntervalRule(anchor, every)
        start = anchor + timedelta(milliseconds=offset - 10**11)
        end = start + timedelta(milliseconds=length % (every * 50))
        found = list(between(rule, start, end))
        assert rule.count(start, end) == len(found)
        assert rule.latest(start, end, 3) == found[-3:]

    def test_once(self) -> None:
        rule = OnceRule(utc("2026-01-01"))
        assert rule.next(utc("2025-12-31")) == utc("2026-01-01") and rule.next(utc("2026-01-01")) is None
        assert rule.count(utc("2025-01-01"), utc("2026-01-01")) == 1
