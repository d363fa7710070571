"""`qinglong backup PATH`: one verified file with everything that cannot be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from apps.core import backup, health
from apps.core.errors import DomainError


class Command(BaseCommand):
    help = "Copies database, logs, receipts and keys into one file; also while QingLong runs."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        # A copy of nothing must not be called verified.
        if (wrong := health.unusable()) is not None:
            raise CommandError(": ".join(wrong), returncode=1)
        if not options["path"].absolute().parent.is_dir():
            raise CommandError(f"folder_missing: {_('The folder of the copy does not exist.')}", returncode=1)
        try:
            entries = backup.create(options["path"])
        except DomainError as error:
            reason = error.extra.get("reason", "")
            raise CommandError(f"{error.code}: {error.detail} {reason}".strip(), returncode=3) from error
        except OSError as error:
            raise CommandError(f"file_error: {error}", returncode=1) from error
        size = sum(entry.size for entry in entries)
        self.stdout.write(
            _(
                "%(count)d files, %(size)d bytes, read back and verified. It holds the keys: keep it as safe as them."
            )
            % {"count": len(entries), "size": size}
        )
