"""An API token from the console."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from apps.access.console import refuse
from apps.access.queries import find_account
from apps.access.scopes import ALL, Credential
from apps.access.services import create_token
from apps.core.errors import DomainError
from apps.identity.principals import PolicySubject


class Command(BaseCommand):
    help = "Make an API token; it is the last word of the last line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--username", required=True)
        parser.add_argument("--name", required=True)
        parser.add_argument("--scopes", nargs="+", default=[ALL], metavar="SCOPE")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the token once; it is stored as a digest only."""
        user = find_account(options["username"])
        if user is None:
            raise CommandError(f"account_not_found: {_('There is no account with this name.')}", returncode=2)
        scopes = [part for text in options["scopes"] for part in text.split(",") if part]
        try:
            created = create_token(
                PolicySubject("user", user.subject_id),
                name=options["name"],
                scopes=scopes,
                maker=Credential("session"),
                origin="command",
            )
        except DomainError as error:
            raise refuse(error) from error
        # Scripts take the last word of the last line, whatever the language.
        self.stdout.write(_("Keep it now, it is not shown again:"))
        self.stdout.write(created.secret)
