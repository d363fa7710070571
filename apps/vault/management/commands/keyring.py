"""`keyring create | rotate | reseal | retire | status`: the operator's hand on the master keys."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from apps.core.errors import DomainError
from apps.vault import keyring, sealing


class Command(BaseCommand):
    help = "Creates the keyring, rotates, re-seals and retires its keys, or lists them (ids only)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["create", "rotate", "reseal", "retire", "status"])
        parser.add_argument("key", nargs="?", help="The id of the key to retire.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, options["action"])(options["key"] or "")
        except DomainError as error:
            raise CommandError(f"{error.code}: {error.detail}") from error

    def create(self, _key: str) -> None:
        self.stdout.write(_("Created with key %(key)s.") % {"key": keyring.create()})

    def rotate(self, _key: str) -> None:
        self.stdout.write(_("Key %(key)s is active; old keys stay.") % {"key": keyring.rotate()})

    def reseal(self, _key: str) -> None:
        moved, after = sealing.reseal()
        while after is not None:
            more, after = sealing.reseal(after)
            moved += more
        self.stdout.write(_("%(count)s values moved to the active key.") % {"count": moved})

    def retire(self, key: str) -> None:
        sealing.retire_key(key)
        self.stdout.write(_("Key %(key)s is gone.") % {"key": key})

    def status(self, _key: str) -> None:
        with keyring.opened() as keys:
            active = keys.active_key_id
        for key_id, used in sealing.keys_in_use().items():
            words = [_("active")] if key_id == active else []
            words += [_("in use")] if used else []
            self.stdout.write(" ".join([key_id, *words]))
