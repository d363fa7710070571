"""`qinglong doctor`: what is wrong with this installation, in words and with codes."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from apps.dispatch.doctor import Level, examine


class Command(BaseCommand):
    help = "Checks settings, files, disk, database, schema, keyring, interpreters and node. Exits 1 on a failure."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        failed = False
        for finding in examine():
            failed = failed or finding.level is Level.FAILURE
            self.stdout.write(f"{finding.level:<8} {finding.code:<22} {finding.sentence}")
        sys.exit(1 if failed else 0)
