"""Takes runs again on this node."""

from __future__ import annotations

from apps.dispatch.management.commands import drain


class Command(drain.Command):
    help = "Takes runs again on this node."
    draining = False
