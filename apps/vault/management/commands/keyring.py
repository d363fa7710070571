"""`keyring create | rotate | reseal | retire | status`: the operator's hand on the master keys."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from apps.core.errors import DomainError
from apps.vault import keyring, rekeying
from apps.vault.errors import KeyInUse


def _why_replaced_stay() -> str:
    return _(
        "Versions of secrets never change: what newer versions replaced stays sealed with the key of its time, and "
        "`reseal` moves the newest only. `retire KEY --give-up-replaced` retires such a key all the same; these "
        "versions, and backups from before, can then not be read any more."
    )


class Command(BaseCommand):
    help = "Creates the keyring, rotates, re-seals and retires its keys, or lists them (ids only)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["create", "rotate", "reseal", "retire", "status"])
        parser.add_argument("key", nargs="?", help="The id of the key to retire.")
        parser.add_argument(
            "--batch",
            type=int,
            default=rekeying.BATCH,
            help="How many values reseal moves at once, up to 200.",
        )
        parser.add_argument(
            "--give-up-replaced",
            action="store_true",
            help="Retires a key although versions of secrets that were replaced can then not be read any more.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, options["action"])(options)
        except KeyInUse as error:
            shown = {"current": error.extra["current"], "replaced": error.extra["replaced"]}
            words = [
                f"{error.code}: {error.detail}" if shown["current"] else f"{error.code}:",
                _("Values that count: %(current)s; replaced versions of secrets: %(replaced)s.") % shown,
                *([_why_replaced_stay()] if shown["replaced"] else []),
            ]
            raise CommandError(" ".join(words)) from error
        except DomainError as error:
            raise CommandError(f"{error.code}: {error.detail}") from error

    def create(self, _options: dict[str, Any]) -> None:
        self.stdout.write(_("Created with key %(key)s.") % {"key": keyring.create()})

    def rotate(self, _options: dict[str, Any]) -> None:
        key = keyring.rotate()
        rekeying.note("keyring.rotated", key, {})
        self.stdout.write(_("Key %(key)s is active; old keys stay.") % {"key": key})

    def reseal(self, options: dict[str, Any]) -> None:
        moved = stuck = 0
        for _holder, batch in rekeying.move_all(min(max(1, options["batch"]), rekeying.BATCH)):
            moved, stuck = moved + batch.moved, stuck + batch.stuck
        self.stdout.write(_("%(count)s values moved to the active key.") % {"count": moved})
        self._tell_replaced()
        if stuck:
            raise CommandError(
                _("%(count)s values cannot be opened and stay as they are.") % {"count": stuck}
            )

    def retire(self, options: dict[str, Any]) -> None:
        key = options["key"] or ""
        rekeying.retire_key(key, give_up_replaced=options["give_up_replaced"])
        self.stdout.write(_("Key %(key)s is gone.") % {"key": key})

    def _tell_replaced(self) -> None:
        """Why old keys are not free although everything moved."""
        with keyring.opened() as keys:
            active = keys.active_key_id
        if any(use.replaced for key_id, use in rekeying.uses().items() if key_id != active):
            self.stdout.write(_why_replaced_stay())

    def status(self, _options: dict[str, Any]) -> None:
        with keyring.opened() as keys:
            active = keys.active_key_id
        for key_id, use in rekeying.uses().items():
            words = [_("active")] if key_id == active else []
            if use.current:
                words.append(_("needed by %(count)s values") % {"count": use.current})
            if use.replaced:
                words.append(_("and by %(count)s replaced versions") % {"count": use.replaced})
            self.stdout.write(" ".join([key_id, *words]))
        self._tell_replaced()
