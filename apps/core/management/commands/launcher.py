"""`qinglong launcher`: becomes this node's launcher, with an empty environment."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from apps.dispatch.supervisor import launcher


class Command(BaseCommand):
    help = "Starts scripts on this node; what it started outlives it."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        launcher.get_ready()
        launcher.end_old()
        launcher.execute()
