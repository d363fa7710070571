"""Sign-in names in the one form they are stored and looked up in."""

from __future__ import annotations

import re
import unicodedata

MAX_LENGTH = 64
_NAME = re.compile(rf"[\w.@+-]{{1,{MAX_LENGTH}}}")


def normal(name: str) -> str:
    """The name in Unicode form NFKC, so that what looks alike is alike."""
    return unicodedata.normalize("NFKC", name)


def is_name(name: str) -> bool:
    """Whether `name` is 1–64 letters, digits and `. @ + - _`."""
    return _NAME.fullmatch(name) is not None
