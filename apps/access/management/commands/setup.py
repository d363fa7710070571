"""First account, owner of the default project and instance administrator, from the console."""

from __future__ import annotations

import getpass
import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from apps.access import setup_file
from apps.access.console import refuse
from apps.access.services import setup_first_account
from apps.core.errors import DomainError


class Command(BaseCommand):
    help = "Make the first account: owner of the default project and instance administrator."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--username", required=True)
        parser.add_argument("--password-env", metavar="VAR", help=_("Read the password from this variable."))

    def handle(self, *args: Any, **options: Any) -> None:
        """Claims with the token that `up` keeps, or one that stays for the next try if this one is refused."""
        password = _password(options["password_env"])
        try:
            challenge_id, token = setup_file.split(setup_file.require())
            user = setup_first_account(challenge_id, token, options["username"], password)
        except DomainError as error:
            raise refuse(error) from error
        setup_file.remove()
        self.stdout.write(
            _("%(name)s owns the default project and administers QingLong.") % {"name": user.username}
        )


def _password(variable: str | None) -> str:
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            raise CommandError(f"password_missing: {_('The variable is empty or not set.')}", returncode=2)
        return value
    if not sys.stdin.isatty():
        sentence = _("There is no terminal to ask on; use --password-env.")
        raise CommandError(f"password_missing: {sentence}", returncode=2)
    password = getpass.getpass(_("Password: "))
    if password != getpass.getpass(_("Password again: ")):
        raise CommandError(f"password_mismatch: {_('The passwords differ.')}", returncode=2)
    return password
