"""Names files under the folder of the logs that no attempt names."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from apps.artifacts.retention import orphans


class Command(BaseCommand):
    help = "Looks for files of logs that no attempt names; removes nothing unless told to."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--remove",
            action="store_true",
            help="carry out a round of the sweep: what is found is written down, what was found a day ago goes",
        )

    def handle(self, *args: Any, remove: bool, **options: Any) -> None:
        after: str | None = None
        unknown = removed = strange = 0
        while True:
            found = orphans.sweep(after, dry_run=not remove)
            for name in found.examples:
                self.stdout.write(name)
            unknown, removed, strange = (
                unknown + found.unknown,
                removed + found.removed,
                strange + found.strange,
            )
            after = found.after
            if after is None:
                break
        self.stdout.write(
            f"{unknown} attempts' files without an attempt, {removed} removed, {strange} other things left alone"
        )
