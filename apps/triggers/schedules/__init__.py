"""Rules of time: reading them strictly, working out due times, saying them in words.

Our own parser and calendar. cronsim, the library chosen at first, knows no clock changes for six fields, takes a
step in minute or hour for a fixed time, and cannot count what was missed without walking it (docs/decisions.md).
It is what the tests compare with.
"""

from apps.triggers.schedules.cron import BOOT, MANUAL, Cron, parse
from apps.triggers.schedules.rules import CronRule, IntervalRule, NeverRule, OnceRule, Rule, rule_of
from apps.triggers.schedules.zones import zone

__all__ = [
    "BOOT", "MANUAL", "Cron", "CronRule", "IntervalRule", "NeverRule", "OnceRule", "Rule", "parse", "rule_of",
    "zone",
]  # fmt: skip
