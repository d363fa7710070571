"""`up` from its first check to its last child."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from functools import partial

from django.conf import settings
from django.utils.translation import gettext as _

from apps.core import ids, logs, wakeups
from apps.core.errors import DomainError
from apps.dispatch import heap, scheduler
from apps.dispatch.supervisor import cluster, launcher, prepare, setup_link, web
from apps.dispatch.supervisor.preload import preload
from apps.dispatch.supervisor.tree import Part, Tree

RUNS = "runs"
LAUNCHER_WAIT_S = 10.0
FAILED = 1

logger = logging.getLogger("qinglong.up")


def run(host: str, port: int, workers: int, slots: int) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code.

    Raises ConfigurationError for everything that is found wrong before something was changed.
    """
    listener = web.bind(host, port)
    prepare.check_home()
    held = prepare.lock()
    launcher.get_ready()
    runtime = prepare.activate()
    code = FAILED
    try:
        settings.SLOTS = slots
        address = _address(host, listener.getsockname()[1])
        if code := prepare.in_child(lambda: prepare.migrate(lambda: _announce(address))):
            return code
        code = FAILED
        logs.speak_as("up")
        preload()
        heap.share()
        code = _tree(listener, address, workers, lambda: _note(runtime.stopping)).serve()
        return code
    finally:
        _note(runtime.failed if code else runtime.stopped)
        held.release()


def _note(step: Callable[[], None]) -> None:
    """Goes on where the receipt was changed under us: it says so, and its file stays as it is."""
    try:
        step()
    except (DomainError, OSError) as error:
        logger.error("the runtime receipt could not be moved on: %s", type(error).__name__)


def _tree(listener: socket.socket, address: str, workers: int, on_drain: Callable[[], None]) -> Tree:
    requests, wishes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # One for the whole tree: a scheduler that is started again belongs to the same start.
    boot = ids.uuid7()

    def serve_web() -> int:
        return web.run(listener)

    def serve_scheduler() -> int:
        listener.close()
        scheduler.register("setup", setup_link.keeper(address), setup_link.EVERY_S)
        return scheduler.run(wishes, boot=boot)

    def serve_launcher() -> int:
        launcher.end_old()
        launcher.start()

    def serve_cluster(name: str) -> int:
        listener.close()
        # Sessions start scripts, so what starts them must be there first.
        if name == RUNS and not launcher.wait_ready(LAUNCHER_WAIT_S):
            return 1
        return cluster.run(name, workers if name == RUNS else None)

    names = [known.name for known in wakeups.clusters() if not known.optional]
    parts = [
        Part("launcher", serve_launcher, apart=True),
        Part("web", serve_web),
        *(Part(name, partial(serve_cluster, name)) for name in names),
        Part("scheduler", serve_scheduler, watched=True),
    ]
    return Tree(parts, requests, on_drain)


def _announce(address: str) -> None:
    print(_("QingLong is at %(address)s/") % {"address": address}, flush=True)
    setup_link.show(address)


def _address(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return settings.BASE_URL or f"http://{shown}:{port}"
