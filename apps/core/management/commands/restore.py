"""`qinglong restore PATH`: a backup into an empty home folder and database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from apps.core import backup, node
from apps.core.errors import DomainError


class Command(BaseCommand):
    help = "Restores a backup into an empty home folder and database; QingLong must not be running."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["path"].is_file():
            raise CommandError(f"file_missing: {_('There is no file of that name.')}", returncode=1)
        try:
            held = node.up_lock()
            try:
                entries = backup.restore(options["path"])
            finally:
                held.release()
        except DomainError as error:
            reason = error.extra.get("reason", "")
            raise CommandError(f"{error.code}: {error.detail} {reason}".strip(), returncode=3) from error
        except OSError as error:
            raise CommandError(f"file_error: {error}", returncode=1) from error
        self.stdout.write(_("%(count)d files restored. Start with `up`.") % {"count": len(entries)})
