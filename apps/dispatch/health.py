"""Health checks of dispatch and of what it needs below (core.health)."""

from __future__ import annotations

from datetime import timedelta

from apps.core import health
from apps.dispatch.queries import oldest_undispatched
from apps.vault import keyring

OLDEST_RUN = timedelta(minutes=10)


def readable_keyring() -> str | None:
    """Whether sealed values can be opened; raises what the keyring raises."""
    keyring.load().wipe()
    return None


def oldest_run() -> str | None:
    """Whether queued runs that could run are taken up."""
    waiting = oldest_undispatched()
    if waiting is None or waiting < OLDEST_RUN:
        return None
    return f"a run has been waiting for {int(waiting.total_seconds())} s"


health.register("keyring", readable_keyring)
health.register("oldest_run", oldest_run)
