"""A rule as one sentence, in English and in Chinese (lessons D3, idea 4)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.utils import translation
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.runs.models import MissedCause, SkipReason
from apps.triggers.due_words import _SAID, Verdict, explain
from apps.triggers.errors import ScheduleInvalid
from apps.triggers.schedules import parse, words
from apps.triggers.schedules.preview import preview
from tests.triggers.kit import utc

SENTENCES = [
    ("* * * * *", "Every minute", "每分钟"),
    ("*/5 * * * *", "Every 5 minutes", "每 5 分钟"),
    ("0 */5 * * * *", "Every 5 minutes", "每 5 分钟"),
    ("@hourly", "Every hour on the hour", "每小时整点"),
    ("5 * * * *", "Every hour at minute 5", "每小时的第 5 分钟"),
    ("@daily", "At 00:00, every day", "每天 00:00"),
    ("0 9 * * *", "At 09:00, every day", "每天 09:00"),
    ("15 30 9 * * *", "At 09:30:15, every day", "每天 09:30:15"),
    ("30 9,18 * * 1-5", "At 09:30 and 18:30, on Monday to Friday", "每周一至周五 09:30、18:30"),
    ("0 */2 * * *", "Every 2 hours on the hour", "每 2 小时整点"),
    ("5 */3 * * *", "Every 3 hours at minute 5", "每 3 小时的第 5 分钟"),
    (
        "*/5 9-17 * * MON-FRI",
        "Every 5 minutes, from 09:00 to 17:59, on Monday to Friday",
        "每周一至周五 09:00 至 17:59，每 5 分钟",
    ),
    ("0 8-18 * * *", "Every hour from 08:00 to 18:00, every day", "每天 08:00 至 18:00 每小时"),
    ("0 0 1 * *", "At 00:00, on day 1 of every month", "每月 1 日 00:00"),
    ("0 0 1,15 * *", "At 00:00, on the days 1 and 15 of every month", "每月 1、15 日 00:00"),
    ("@yearly", "At 00:00, on day 1 of January", "每年 1 月 1 日 00:00"),
    ("0 0 29 2 *", "At 00:00, on day 29 of February", "每年 2 月 29 日 00:00"),
    (
        "0 0 1,15 * 1",
        "At 00:00, on the days 1 and 15 of the month or on Monday",
        "每月 1、15 日或周一 00:00",
    ),
    (
        "0 0 */2 * 1",
        "At 00:00, on the days 1, 3, … 31 of the month if they are Monday",
        "每月 1、3 … 31 日且为周一 00:00",
    ),
    ("*/10 * * * * *", "Every 10 seconds", "每 10 秒"),
    (
        "30 5/10 * * * *",
        "At second 30, at the minutes 5, 15, … 55, every hour",
        "每小时，第 5、15 … 55 分钟，第 30 秒",
    ),
    ("*/7 * * * *", "At the minutes 0, 7, … 56, every hour", "每小时，第 0、7 … 56 分钟"),
    (
        "0 12 * 6-8 0,6",
        "At 12:00, on Saturday and Sunday, in June to August",
        "每年 6 月 至 8 月，每周六、周日 12:00",
    ),
    ("0 0 * * 7", "At 00:00, on Sunday", "每周日 00:00"),
    ("0 0 * * FRI-SUN", "At 00:00, on Friday to Sunday", "每周五至周日 00:00"),
    (
        "0-10 3 * * *",
        "At the minutes 0 to 10, from 03:00 to 03:59, every day",
        "每天 03:00 至 03:59，第 0 至 10 分钟",
    ),
    ("* * 3 * * *", "Every second, from 03:00 to 03:59, every day", "每天 03:00 至 03:59，每秒"),
    ("0 9 * 1 *", "At 09:00, every day, in January", "每年 1 月，每天 09:00"),
    ("@once", "Only by hand", "仅手动运行"),
]


@pytest.mark.parametrize(("schedule", "english", "chinese"), SENTENCES)
def test_sentences(schedule: str, english: str, chinese: str) -> None:
    with translation.override("en"):
        assert words.cron(schedule) == english
    with translation.override("zh-hans"):
        assert words.cron(schedule) == chinese


@pytest.mark.parametrize(
    ("ms", "english", "chinese"),
    [
        (1_000, "Every second", "每秒"),
        (90_000, "Every 90 seconds", "每 90 秒"),
        (60_000, "Every minute", "每分钟"),
        (7_200_000, "Every 2 hours", "每 2 小时"),
        (86_400_000, "Every day", "每天"),
        (172_800_000, "Every 2 days", "每 2 天"),
        (1_500, "Every 1500 ms", "每 1500 毫秒"),
    ],
)
def test_intervals(ms: int, english: str, chinese: str) -> None:
    trigger = SimpleNamespace(kind="interval", every_ms=ms)
    for language, sentence in (("en", english), ("zh-hans", chinese)):
        with translation.override(language):
            assert words.of(trigger) == sentence


def test_the_other_kinds() -> None:
    once = SimpleNamespace(kind="once", at=utc("2026-11-29T18:05:03"), timezone="Asia/Shanghai")
    with translation.override("en"):
        assert words.of(once) == "Once, on 2026-11-30 02:05:03"
        assert words.of(SimpleNamespace(kind="boot")) == "Each time the system is started"
        assert words.of(SimpleNamespace(kind="webhook")) == "When its address is called"
        broken = SimpleNamespace(kind="cron", schedule="0 0 L * *", timezone="UTC")
        assert words.of(broken) == "0 0 L * *", "a broken rule is shown as it is"


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="0123456789*/,- ", min_size=9, max_size=30), st.sampled_from(["en", "zh-hans"]))
def test_every_rule_has_a_sentence(text: str, language: str) -> None:
    try:
        parse(text)
    except ScheduleInvalid:
        return
    with translation.override(language):
        sentence = words.cron(text)
    assert sentence and "%(" not in sentence and ", ," not in sentence and not sentence.endswith((", ", "，"))


def test_every_word_is_there_in_chinese() -> None:
    """What became of a due time, why one was skipped, what a clock change does: no English left over."""
    with translation.override("zh-hans"):
        said = [explain(Verdict(*key), change="moved")[0] for key in _SAID]
        said += [explain(Verdict("ran", "succeeded"), change="first_of_two")[0]]
        said += [str(choice.label) for choice in (*SkipReason, *MissedCause)]
        for schedule in ("30 2 * * *", "*/30 2 * * *", "0 12 * * *"):
            found = preview(
                "cron", schedule=schedule, timezone="Europe/Berlin", now=utc("2026-03-01"), count=30
            )
            said += [change.sentence for change in found.clock_changes]
            said += [fire.sentence for fire in found.fires if fire.sentence]
        for schedule in ("* * * * * *", "0 0 1 * 1", "0 0 */2 * 1", "*/7 * * * *", "@once"):
            said += [warning.sentence for warning in preview("cron", schedule=schedule).warnings]
    for sentence in said:
        letters = [character for character in sentence if character.isascii() and character.isalpha()]
        assert len(letters) <= 2, sentence


BAD = [
    "", "* *", "?", "0 0 L * *", "H * * * *", "TZ=UTC * * * * *", "61 * * * *", "5-1 * * * *", "0 0 31 2 *",
    "*/99 * * * *", "1,, * * * *",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_refusals_in_chinese(text: str) -> None:
    parse.cache_clear()
    with translation.override("zh-hans"), pytest.raises(ScheduleInvalid) as caught:
        parse(text)
    assert any("\u4e00" <= character <= "\u9fff" for character in str(caught.value.sentence))


class TestWarnings:
    def codes(self, **rule: object) -> dict[str, str]:
        with translation.override("en"):
            return {warning.code: warning.sentence for warning in preview(**rule).warnings}  # type: ignore[arg-type]

    def test_often(self) -> None:
        assert (
            self.codes(kind="cron", schedule="*/10 * * * * *")["frequent"] == "This starts 8,640 runs a day."
        )
        assert "frequent" not in self.codes(kind="cron", schedule="* * * * *")
        assert self.codes(kind="interval", every_ms=30_000)["frequent"] == "This starts 2,880 runs a day."
        assert "frequent" not in self.codes(kind="interval", every_ms=60_000)

    def test_days(self) -> None:
        assert "day_or_weekday" in self.codes(kind="cron", schedule="0 0 1 * 1")
        assert "day_and_weekday" in self.codes(kind="cron", schedule="0 0 */2 * 1")
        assert self.codes(kind="cron", schedule="0 0 1 * *") == {}

    def test_dialects(self) -> None:
        assert list(self.codes(kind="cron", schedule="0 0 5 * * *")) == ["seconds_first"]
        assert list(self.codes(kind="cron", schedule="*/7 * * * *")) == ["uneven_step"]
        assert list(self.codes(kind="cron", schedule="@once")) == ["manual_only"]
