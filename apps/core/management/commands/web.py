"""`qinglong web`: the web process alone."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from apps.core import logs
from apps.dispatch.supervisor import web


class Command(BaseCommand):
    help = "Serves the panel and the API."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
        parser.add_argument("--port", type=int, default=5700, help="port to listen on (default 5700)")

    def handle(self, *args: Any, **options: Any) -> None:
        listener = web.bind(options["host"], options["port"])
        logs.speak_as("web")
        web.preload()
        sys.exit(web.run(listener))
