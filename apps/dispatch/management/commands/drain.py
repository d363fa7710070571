"""Stops taking new runs on this node, or at one of its worker places."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, ClassVar

from django.core.management.base import BaseCommand

from apps.core import node
from apps.core.errors import DomainError
from apps.dispatch import queries
from apps.dispatch.models import Node
from apps.dispatch.services import draining, nodes

CONSOLE = ("system", "local-console")
LOOK_S = 0.5


class Command(BaseCommand):
    help = "Takes no new runs on this node until `resume`, whatever is started anew; scripts that run go on."
    draining: ClassVar[bool] = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--worker", type=int, metavar="PLACE", help="only this worker place of the node")
        if self.draining:
            parser.add_argument(
                "--wait", type=float, default=0, metavar="SECONDS", help="until nothing runs, so long at most"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            here, place = node.node_id(), options["worker"]
            self._switch(here, place)
        except DomainError as error:
            self._fail(f"{error.detail} [{error.code}]")
        what = f"Worker place {place} of this node" if place else "This node"
        if not self.draining:
            self.stdout.write(f"{what} takes runs again.")
            return
        left = self._wait(here, options["wait"])
        self.stdout.write(f"{what} takes no new runs; {left} still on this node.")
        if left and options["wait"]:
            self._fail("something still runs [still_running]")

    def _switch(self, here: str, place: int | None) -> None:
        if place is not None:
            draining.set_worker(self.draining, f"{here}:{place}", actor=CONSOLE, origin="command")
            return
        if not Node.objects.filter(pk=here).exists():
            nodes.meet(here)
        draining.set_node(self.draining, here, actor=CONSOLE, origin="command")

    def _wait(self, here: str, seconds: float) -> int:
        end = time.monotonic() + seconds
        while (left := queries.running_on(here)) and time.monotonic() < end:
            time.sleep(LOOK_S)
        return left

    def _fail(self, sentence: str) -> None:
        self.stderr.write(f"qinglong: {sentence}")
        sys.exit(1)
