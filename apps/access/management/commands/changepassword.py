"""A new password from the console, in place of Django's own command, which would leave sessions as they are."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from apps.access.console import read_password, refuse
from apps.access.queries import find_account
from apps.access.services.recovery import reset_password
from apps.core.errors import DomainError


class Command(BaseCommand):
    help = "Give an account a new password; its sessions end."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--password-env", metavar="VAR", help=_("Read the password from this variable."))
        parser.add_argument(
            "--forget-second-factor",
            action="store_true",
            help=_("Remove app, passkeys and recovery codes too, for somebody who lost them."),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Asks twice on a terminal; says what has ended."""
        user = find_account(options["username"])
        if user is None:
            raise CommandError(f"account_not_found: {_('There is no account with this name.')}", returncode=2)
        password = read_password(options["password_env"])
        try:
            reset_password(user, password, forget_factors=options["forget_second_factor"])
        except DomainError as error:
            raise refuse(error) from error
        self.stdout.write(
            _("%(name)s has a new password; all sessions have ended.") % {"name": user.username}
        )
