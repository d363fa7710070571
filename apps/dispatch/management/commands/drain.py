"""Stops taking new runs on this node."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from django.core.management.base import BaseCommand

from apps.core import node
from apps.core.errors import DomainError
from apps.dispatch.services import workers

CONSOLE = ("system", "local-console")


class Command(BaseCommand):
    help = "Takes no new runs on this node; scripts that run go on."
    draining: ClassVar[bool] = True

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            count = workers.set_draining(
                self.draining, node_id=node.node_id(), actor=CONSOLE, origin="command"
            )
        except DomainError as error:
            self.stderr.write(f"qinglong: {error.detail} [{error.code}]")
            sys.exit(1)
        self.stdout.write(
            f"{count} worker(s) of this node {'drain' if self.draining else 'take runs again'}."
        )
