"""`qinglong login_doctor`: what keeps people from signing in through a provider, in words and with codes."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from apps.access.oidc import doctor, providers
from apps.access.oidc.errors import NoProvider
from apps.access.services.single_sign_on import accept_issuer
from apps.core import clock
from apps.identity.principals import PolicySubject
from qinglong.single_sign_on import Provider


class Command(BaseCommand):
    help = "Asks each OpenID provider whether sign-in can work, and shows the last sign-ins. Exits 1 on a failure."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--accept-issuer",
            metavar="NAME",
            help="the people of this provider keep their sub under its new issuer",
        )
        parser.add_argument(
            "--last", type=int, default=5, help="how many of the last sign-ins to show (0–50)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not providers.all_providers():
            self.stdout.write(_("No provider is set up: set OIDC_ISSUER and OIDC_CLIENT_ID."))
            return
        if options["accept_issuer"]:
            self.accept(options["accept_issuer"])
            return
        failed = [
            self.show(provider, max(0, min(50, options["last"]))) for provider in providers.all_providers()
        ]
        sys.exit(1 if any(failed) else 0)

    def accept(self, alias: str) -> None:
        """Audited as an act of whoever has this console."""
        try:
            provider = providers.find(alias)
        except NoProvider as error:
            raise CommandError(f"{error.code}: {error.detail}") from error
        accept_issuer(provider, actor=PolicySubject("system", "console"), origin="command")
        self.stdout.write(f"{provider.alias}: {provider.issuer}")

    def show(self, provider: Provider, last: int) -> bool:
        """One provider; whether something keeps it from working."""
        self.stdout.write(f"{provider.name} ({provider.alias}): {provider.issuer}")
        for name, address in doctor.addresses(provider):
            self.stdout.write(f"  {name}: {address}")
        findings = doctor.examine(provider)
        for finding in findings:
            self.stdout.write(f"  {finding.level:<8} {finding.code:<22} {finding.sentence}")
        for row in doctor.recent(provider, last):
            words = [clock.rfc3339(row.at), row.outcome, row.username, row.reason, row.reference]
            self.stdout.write("  " + "  ".join(word for word in words if word))
            if row.claims:
                self.stdout.write(f"    {json.dumps(row.claims, ensure_ascii=False)}")
            for role in row.roles:
                self.stdout.write(
                    f"    {role['project']}: {role['previous'] or '-'} -> {role['role'] or '-'}"
                )
        return any(finding.level is doctor.Level.FAILURE for finding in findings)
