"""Log lines: plain text, one event a line, led by the part of the tree that speaks."""

from __future__ import annotations

import logging

_part = ""


def speak_as(part: str) -> None:
    """Names the part of the tree in every later line of this process."""
    global _part
    _part = part


class PlainFormatter(logging.Formatter):
    """Time, level, part and message; a line break inside a message cannot start a line of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(part)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Called by logging."""
        record.part = f"{_part}: " if _part else ""
        return super().format(record).replace("\r", "\\r").replace("\n", "\n    ")
