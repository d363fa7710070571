"""What somebody decides about says what it is: nothing in it is there without being seen."""

from __future__ import annotations

import pytest

from apps.panel import terminal

UNSEEN = (
    0x00AD, 0x034F, 0x061C, 0x0085, 0x115F, 0x180E, 0x200B, 0x200D, 0x200F, 0x2028, 0x202E, 0x2060, 0x2066, 0x2800,
    0x3164, 0xFE0F, 0xFEFF, 0xE0041, 0xE0100,
)  # fmt: skip


@pytest.mark.parametrize("code", UNSEEN)
def test_every_character_that_is_not_seen_is_a_sign(code: int) -> None:
    text = f"rm -r{chr(code)} build"
    assert terminal.visible(text) == f"rm -r‹U+{code:04X}› build"
    assert terminal.hides(text)


@pytest.mark.parametrize(
    "text", ["plain", "青龙 面板\n\tzwei", "ä é ñ — “x”", "עברית", "line\r\nline\n", "🐉"]
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert not terminal.hides(text)
    assert terminal.visible(text.replace("\r", "")) == text.replace("\r", "")


def test_emoji_of_a_log_stay_joined() -> None:
    assert terminal.plain("👩‍🚀 done".encode()) == "👩‍🚀 done"
