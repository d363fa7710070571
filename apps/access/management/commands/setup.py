"""First account, owner of the default project and instance administrator, from the console."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from apps.access import setup_file
from apps.access.console import read_password, refuse
from apps.access.services import setup_first_account
from apps.core.errors import DomainError


class Command(BaseCommand):
    help = "Make the first account: owner of the default project and instance administrator."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--username", required=True)
        parser.add_argument("--password-env", metavar="VAR", help=_("Read the password from this variable."))

    def handle(self, *args: Any, **options: Any) -> None:
        """Claims with the token that `up` keeps, or one that stays for the next try if this one is refused."""
        password = read_password(options["password_env"])
        try:
            challenge_id, token = setup_file.split(setup_file.require())
            user = setup_first_account(challenge_id, token, options["username"], password)
        except DomainError as error:
            raise refuse(error) from error
        setup_file.remove()
        self.stdout.write(
            _("%(name)s owns the default project and administers QingLong.") % {"name": user.username}
        )
