"""What an installation keeps, unless a project or a task says otherwise (secrets-and-artifacts.md §7.6, §7.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

DAY_MS = 86_400_000
NAMES = frozenset(
    {
        "QINGLONG_KEEP_LOGS_DAYS", "QINGLONG_KEEP_LOGS_LOW_DISK_DAYS", "QINGLONG_KEEP_LOGS_LEAST",
        "QINGLONG_KEEP_HISTORY_DAYS",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Retention:
    """Times in milliseconds. `page` candidates are looked at and `most` of them removed per sweep.

    `keep_least` newest logs of a task stay whatever their age; after `history_ms` a run's attempts and events fold.
    """

    interval_ms: int
    page: int
    most: int
    keep_ms: int
    pressure_ms: int
    keep_least: int = 3
    history_ms: int = 90 * DAY_MS

    def __post_init__(self) -> None:
        if not (
            1_000 <= self.interval_ms <= DAY_MS
            and 1 <= self.page <= 64
            and 1 <= self.most <= self.page
            and 60_000 <= self.keep_ms <= 365 * DAY_MS
            and 60_000 <= self.pressure_ms <= self.keep_ms
            and 0 <= self.keep_least <= 1_000
            and self.history_ms >= DAY_MS
        ):
            raise ValueError("the numbers of retention are out of bounds")


PROFILES = {
    "edge": Retention(300_000, 8, 4, 7 * DAY_MS, DAY_MS),
    "standalone": Retention(60_000, 32, 16, 30 * DAY_MS, 7 * DAY_MS),
}
PROFILES["cluster"] = PROFILES["standalone"]


def read(values: Mapping[str, str]) -> Retention:
    """The profile with what the environment changes of it; raises ValueError with a sentence."""
    name = values.get("QINGLONG_PROFILE") or "standalone"
    if name not in PROFILES:
        raise ValueError("QINGLONG_PROFILE is edge, standalone or cluster.")
    found = PROFILES[name]
    keep = _number(values, "QINGLONG_KEEP_LOGS_DAYS", found.keep_ms // DAY_MS, 1, 365)
    low = _number(values, "QINGLONG_KEEP_LOGS_LOW_DISK_DAYS", min(keep, found.pressure_ms // DAY_MS), 1, keep)
    return replace(
        found,
        keep_ms=keep * DAY_MS,
        pressure_ms=low * DAY_MS,
        keep_least=_number(values, "QINGLONG_KEEP_LOGS_LEAST", found.keep_least, 0, 1_000),
        history_ms=_number(values, "QINGLONG_KEEP_HISTORY_DAYS", found.history_ms // DAY_MS, 1, 3_650)
        * DAY_MS,
    )


def _number(values: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = values.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 6 and least <= int(text) <= most):
        raise ValueError(f"{name} is a whole number from {least} to {most}.")
    return int(text)
