"""`keyring create | rotate | status`: the operator's hand on the master keys."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from apps.core.errors import DomainError
from apps.vault import keyring, sealing


class Command(BaseCommand):
    help = "Creates the keyring, adds a new active key, or lists its keys (ids only)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["create", "rotate", "status"])

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, options["action"])()
        except DomainError as error:
            raise CommandError(f"{error.code}: {error.detail}") from error

    def create(self) -> None:
        self.stdout.write(_("Created with key %(key)s.") % {"key": keyring.create()})

    def rotate(self) -> None:
        self.stdout.write(_("Key %(key)s is active; old keys stay.") % {"key": keyring.rotate()})

    def status(self) -> None:
        with keyring.opened() as keys:
            active = keys.active_key_id
        for key_id, used in sealing.keys_in_use().items():
            words = [_("active")] if key_id == active else []
            words += [_("in use")] if used else []
            self.stdout.write(" ".join([key_id, *words]))
