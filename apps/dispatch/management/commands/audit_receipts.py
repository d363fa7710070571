"""`audit_receipts`: what killed processes left in this node's folders (runs.md §8.7)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from apps.dispatch.orphans import ENTRIES_MAX, SHARDS
from apps.dispatch.services import orphans


class Command(BaseCommand):
    help = (
        "Lists what nobody waits for in this node's folders; with --quarantine puts it aside or removes it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--quarantine", action="store_true", help="put aside and remove, not only list")
        parser.add_argument("--entries", type=int, default=ENTRIES_MAX, help="looked at per folder, up to 64")

    def handle(self, **options: Any) -> None:
        mode = "quarantine" if options["quarantine"] else "audit"
        counts: Counter[str] = Counter()
        for start in range(0, len(SHARDS), orphans.MAX_SHARDS):
            report = orphans.audit(mode, start=start, shards=orphans.MAX_SHARDS, entries=options["entries"])
            counts += report.counts
            for place, name, action in report.actions:
                self.stdout.write(f"{place}/{name}: {action}")
        found = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
        self.stdout.write(found or "nothing there")
