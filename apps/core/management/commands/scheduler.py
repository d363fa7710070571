"""`qinglong scheduler`: the scheduler alone."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from apps.core import logs
from apps.dispatch import scheduler


class Command(BaseCommand):
    help = "Rings whoever has work and watches that somebody answers. Any number may run."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        logs.speak_as("scheduler")
        sys.exit(scheduler.run())
