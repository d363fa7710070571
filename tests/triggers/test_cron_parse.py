"""Cron rules are read strictly: what is not understood is refused with reason and place (lessons D3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.triggers.errors import ScheduleInvalid
from apps.triggers.schedules import Cron, parse


def refusal(text: str) -> tuple[str, int | None, int, int]:
    with pytest.raises(ScheduleInvalid) as caught:
        parse(text)
    extra = caught.value.extra
    assert str(caught.value.sentence)
    return extra["reason"], extra["field"], extra["offset"], extra["length"]


@pytest.mark.parametrize(
    ("text", "reason", "field", "offset", "length"),
    [
        ("", "empty", None, 0, 0),
        ("  \t ", "empty", None, 0, 0),
        ("*", "too_few_fields", 1, 1, 0),
        ("* * * *", "too_few_fields", 4, 7, 0),
        ("* * * * * * * *", "too_many_fields", 8, 14, 1),
        ("0 0 12 1 1 ? 2027", "question_mark", 6, 11, 1),
        ("0 0 12 1 1 * 2027", "year_field", 7, 13, 4),
        ("0 12 1 1 * 2027", "year_field", 6, 11, 4),
        ("0 12 1 1 * 2027-2029", "year_field", 6, 11, 9),
        ("30 5/10 * * * ?", "question_mark", 6, 14, 1),
        ("0 0 ? * 1", "question_mark", 3, 4, 1),
        ("0 0 L * *", "last", 3, 4, 1),
        ("0 0 L-3 * *", "last", 3, 4, 1),
        ("0 0 * * 5L", "last", 5, 8, 2),
        ("0 0 * * FRIL", "last", 5, 8, 4),
        ("0 0 LW * *", "last", 3, 4, 2),
        ("0 0 15W * *", "nearest_weekday", 3, 4, 3),
        ("0 0 * * 6#3", "nth_weekday", 5, 9, 1),
        ("H * * * *", "hash", 1, 0, 1),
        ("H/15 * * * *", "hash", 1, 0, 1),
        ("H(0-29) * * * *", "hash", 1, 0, 3),
        ("~ * * * *", "random", 1, 0, 1),
        ("0~30 * * * *", "random", 1, 1, 1),
        ("0 9 * * * %echo", "percent", 6, 10, 1),
        ("CRON_TZ=Asia/Shanghai 0 9 * * *", "zone_prefix", 1, 0, 8),
        ("tz=UTC 0 9 * * *", "zone_prefix", 1, 0, 3),
        ("@every 5m", "alias_unknown", 1, 0, 6),
        ("@fortnightly", "alias_unknown", 1, 0, 12),
        ("@daily 5", "alias_unknown", 1, 0, 6),
        ("60 * * * *", "out_of_range", 1, 0, 2),
        ("* 24 * * *", "out_of_range", 2, 2, 2),
        ("* * 0 * *", "out_of_range", 3, 4, 1),
        ("* * 32 * *", "out_of_range", 3, 4, 2),
        ("* * * 13 *", "out_of_range", 4, 6, 2),
        ("* * * 0 *", "out_of_range", 4, 6, 1),
        ("* * * * 8", "out_of_range", 5, 8, 1),
        ("60 * * * * *", "out_of_range", 1, 0, 2),
        ("* * 1-40 * *", "out_of_range", 3, 6, 2),
        ("* * 1,2,99 * *", "out_of_range", 3, 8, 2),
        ("5-1 * * * *", "reversed", 1, 0, 3),
        ("* * * * 5-1", "reversed", 5, 8, 3),
        ("/5 * * * *", "bare_step", 1, 0, 2),
        ("* */0 * * *", "step_zero", 2, 4, 1),
        ("*/60 * * * *", "step_too_large", 1, 2, 2),
        ("* */24 * * *", "step_too_large", 2, 4, 2),
        ("*/x * * * *", "step", 1, 2, 1),
        ("*/ * * * *", "step", 1, 2, 0),
        ("*/5/5 * * * *", "step", 1, 2, 3),
        ("1,,2 * * * *", "empty_item", 1, 2, 0),
        ("1, * * * *", "empty_item", 1, 2, 0),
        (", * * * *", "empty_item", 1, 0, 0),
        ("1- * * * *", "value_missing", 1, 2, 0),
        ("-5 * * * *", "value_missing", 1, 0, 0),
        ("*-5 * * * *", "star", 1, 0, 1),
        ("** * * * *", "star", 1, 0, 2),
        ("5* * * * *", "star", 1, 0, 2),
        ("MON * * * *", "value", 1, 0, 3),
        ("* * * MON *", "value", 4, 6, 3),
        ("* * * * JAN", "value", 5, 8, 3),
        ("* * * * MONDAY", "value", 5, 8, 6),
        ("1.5 * * * *", "value", 1, 0, 3),
        ("+1 * * * *", "value", 1, 0, 2),
        ("0x1 * * * *", "value", 1, 0, 3),
        ("9999999999 * * * *", "value", 1, 0, 10),
        ("０ * * * *", "character", None, 0, 1),
        ("0 9 * * *\n", "character", None, 9, 1),
        ("0 9\u00a0* * * *", "character", None, 3, 1),
        ("٣ * * * *", "character", None, 0, 1),
        ("* " * 200, "too_long", None, 255, 0),
        ("0 0 30 2 *", "never", 3, 4, 2),
        ("0 0 31 4,6,9,11 *", "never", 3, 4, 2),
        ("0 0 0 30 2 *", "never", 4, 6, 2),
        ("0 0 30,31 2 */2", "never", 3, 4, 5),
    ],
)
def test_refused_with_reason_and_place(
    text: str, reason: str, field: int | None, offset: int, length: int
) -> None:
    assert refusal(text) == (reason, field, offset, length)


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("*/15 * * * *", "minute", (0, 15, 30, 45)),
        ("5/10 * * * *", "minute", (5, 15, 25, 35, 45, 55)),
        ("10-30/10 * * * *", "minute", (10, 20, 30)),
        ("1,3-5,*/30 * * * *", "minute", (0, 1, 3, 4, 5, 30)),
        ("007 * * * *", "minute", (7,)),
        ("* * * JAN,mar *", "month", (1, 3)),
        ("* * * JAN-mar *", "month", (1, 2, 3)),
        ("* * * * 7", "weekday", (0,)),
        ("* * * * 0", "weekday", (0,)),
        ("* * * * 5-7", "weekday", (0, 5, 6)),
        ("* * * * 0-7", "weekday", (0, 1, 2, 3, 4, 5, 6)),
        ("* * * * FRI-SUN", "weekday", (0, 5, 6)),
        ("* * * * sun-tue", "weekday", (0, 1, 2)),
        ("* * * * */2", "weekday", (0, 2, 4, 6)),
        ("* * * * 1/2", "weekday", (1, 3, 5)),
        ("*/20 * * * * *", "second", (0, 20, 40)),
        ("30 5/10 * * * *", "minute", (5, 15, 25, 35, 45, 55)),
        ("0 0 29 2 *", "day", (29,)),
        ("  0   9\t* * *  ", "hour", (9,)),
        ("@hourly", "minute", (0,)),
        ("@WEEKLY", "weekday", (0,)),
        ("@yearly", "month", (1,)),
        ("@annually", "day", (1,)),
        ("@midnight", "hour", (0,)),
        ("@monthly", "day", (1,)),
    ],
)
def test_understood(text: str, field: str, values: tuple[int, ...]) -> None:
    assert getattr(parse(text), field).values == values


def test_six_fields_begin_with_seconds() -> None:
    rule = parse("10 0 5 * * *")
    assert (rule.second.values, rule.minute.values, rule.hour.values, rule.day.free) == (
        (10,),
        (0,),
        (5,),
        True,
    )
    assert parse("0 5 * * *").second.values == (0,)


def test_what_goes_by_the_clock() -> None:
    by_clock = [
        "* * * * *",
        "*/5 2 * * *",
        "30 * * * *",
        "30 */2 * * *",
        "0-30/10 2 * * *",
        "0 9-17/2 * * *",
        "@hourly",
    ]
    fixed = [
        "30 2 * * *",
        "0,30 1-3 * * *",
        "*/10 30 2 * * *",
        "* 30 2 * * *",
        "@daily",
        "0 0 */2 * *",
        "0 0 * */3 *",
    ]
    assert all(parse(text).by_clock for text in by_clock)
    assert not any(parse(text).by_clock for text in fixed)


def test_a_field_that_begins_with_a_star_does_not_widen_the_days() -> None:
    assert parse("0 0 1 * 1").either_day
    for text in ("0 0 * * 1", "0 0 1 * *", "0 0 */2 * 1", "0 0 1 * */2", "0 0 *,1 * 1"):
        assert not parse(text).either_day


@given(st.text(alphabet="0123456789*/,-? LWH#@~%aJANMONTZ=\t", max_size=40))
def test_anything_is_read_or_refused(text: str) -> None:
    try:
        rule = parse(text)
    except ScheduleInvalid as error:
        extra = error.extra
        assert 0 <= extra["offset"] <= len(text) and 0 <= extra["length"] <= len(text) - extra["offset"]
    else:
        assert isinstance(rule, Cron)
        assert parse(rule.text).text == rule.text
