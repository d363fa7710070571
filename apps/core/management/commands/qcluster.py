"""`qinglong qcluster`: one django-q2 cluster, with our guard in place of the stock command's."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core import logs, wakeups
from apps.dispatch.supervisor import cluster


class Command(BaseCommand):
    help = "Serves one cluster: `control` (housekeeping) or `runs` (dispatch sessions)."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "-n", "--name", default=os.environ.get("Q_CLUSTER_NAME", "control"), help="control or runs"
        )
        parser.add_argument("--workers", type=int, default=None, help="processes that take messages")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        if name not in [known.name for known in wakeups.clusters()]:
            raise CommandError(f"There is no cluster {name!r}.", returncode=2)
        logs.speak_as(name)
        sys.exit(cluster.run(name, options["workers"]))
