"""Takes runs again on this node, or at one of its worker places."""

from __future__ import annotations

from apps.dispatch.management.commands import drain


class Command(drain.Command):
    help = "Takes runs again on this node."
    draining = False
