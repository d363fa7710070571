"""`qinglong up`: everything on one machine."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from apps.dispatch.journal import CAPACITY
from apps.dispatch.supervisor import up


class Command(BaseCommand):
    help = "Migrates, prints the address and, where no owner exists, the set-up link; then runs everything."
    requires_system_checks = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
        parser.add_argument("--port", type=int, default=5700, help="port to listen on (default 5700)")
        parser.add_argument(
            "--workers", type=int, default=1, help="dispatch workers of this node (default 1)"
        )
        parser.add_argument("--slots", type=int, default=settings.SLOTS, help="scripts at once per worker")

    def handle(self, *args: Any, **options: Any) -> None:
        for name, least, most in (("port", 0, 65535), ("workers", 1, 64), ("slots", 1, 1024)):
            if not least <= options[name] <= most:
                raise self.wrong(f"--{name} is a number from {least} to {most}.")
        if options["workers"] * options["slots"] > CAPACITY:
            raise self.wrong(f"A node carries at most {CAPACITY} scripts: --workers times --slots.")
        sys.exit(up.run(options["host"], options["port"], options["workers"], options["slots"]))

    @staticmethod
    def wrong(sentence: str) -> Exception:
        from qinglong.environment import ConfigurationError

        return ConfigurationError("number_invalid", sentence)
