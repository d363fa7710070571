"""One resident dispatch session, without a queue in its path."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from apps.core.errors import DomainError


class Command(BaseCommand):
    help = "Carries runs out until it is told to stop; scripts outlive it."

    def handle(self, *args: Any, **options: Any) -> None:
        from apps.dispatch import session
        from apps.dispatch.supervisor import launcher

        if settings.RUN_AS is not None:
            launcher.get_ready()  # a node that cannot start scripts takes none from the others
        try:
            session.run_resident()
        except DomainError as error:
            self.stderr.write(f"qinglong: {error.detail} [{error.code}]")
            sys.exit(1)
