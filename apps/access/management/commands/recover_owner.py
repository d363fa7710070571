"""An owner for a project that has none who could act, from the console."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from apps.access.console import refuse
from apps.access.queries import find_account
from apps.core.errors import DomainError
from apps.identity.principals import PolicySubject
from apps.projects.queries import find
from apps.projects.services import recover_ownership


class Command(BaseCommand):
    help = (
        "Make an account owner of a project whose owners are all gone or disabled; the audit trail keeps it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("project", help=_("Id or short name of the project."))
        parser.add_argument("--username", required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        """Refuses while somebody owns the project and could give the role."""
        user = find_account(options["username"])
        if user is None:
            raise CommandError(f"account_not_found: {_('There is no account with this name.')}", returncode=2)
        try:
            project = find(options["project"])
            recover_ownership(project.pk, PolicySubject("user", user.subject_id))
        except DomainError as error:
            raise refuse(error) from error
        names = {"name": user.username, "project": project.name}
        self.stdout.write(_("%(name)s owns %(project)s now.") % names)
