"""Terminal output as plain text, for eyes and pages that run no script; colours and cursor codes are dropped."""

from __future__ import annotations

import re

LONGEST = 200

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
# Controls and marks that turn the direction of text: shown, they could make a line say what it does not.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# Beside them all that takes no place, or breaks a line where nobody sees it: of use in a log, where emoji are joined
# by it, but not in what somebody decides about.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def plain(content: bytes) -> str:
    """The text without codes; a line that wrote over itself as it stood last, hidden marks as signs."""
    text = _ESCAPES.sub("", content.decode("utf-8", "replace"))
    lines = (line.removesuffix("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return _HIDDEN.sub(_sign, "\n".join(lines))


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else f"‹U+{code:04X}›"


def last_line(content: bytes) -> str:
    """The last line that says something, at most LONGEST characters."""
    for raw in reversed(plain(content).split("\n")):
        line = raw.strip()
        if line:
            return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return ""


def visible(text: str) -> str:
    """Text that somebody decides about: hidden marks as signs, so that it says what it is."""
    return _UNSEEN.sub(_sign, text)


def hides(text: str) -> bool:
    """Whether a text holds marks that are not seen, line ends apart."""
    return _UNSEEN.search(text.replace("\r\n", "\n")) is not None
