"""`up` from its first check to its last child."""

from __future__ import annotations

import os
import socket
import sys

from django.conf import settings
from django.utils.translation import gettext as _

from apps.core import logs, wakeups
from apps.dispatch import scheduler
from apps.dispatch.supervisor import cluster, launcher, prepare, web
from apps.dispatch.supervisor.preload import preload, share
from apps.dispatch.supervisor.tree import Part, Tree


def run(host: str, port: int, workers: int, slots: int) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code.

    Raises ConfigurationError for everything that is found wrong before something was changed.
    """
    listener = web.bind(host, port)
    prepare.check_home()
    held = prepare.lock()
    settings.SLOTS = slots
    if code := prepare.in_child(prepare.migrate):
        return code
    logs.speak_as("up")
    _announce(host, listener.getsockname()[1])
    preload()
    share()
    try:
        return _tree(listener, workers).serve()
    finally:
        held.release()


def _tree(listener: socket.socket, workers: int) -> Tree:
    requests, wishes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve_web() -> int:
        return web.run(listener)

    def serve_scheduler() -> int:
        listener.close()
        return scheduler.run(wishes)

    def serve_cluster(name: str) -> int:
        listener.close()
        return cluster.run(name, workers if name == "runs" else None)

    def serve_launcher() -> int:
        launcher.end_old()
        launcher.start()

    clusters = [
        Part(known.name, lambda name=known.name: serve_cluster(name))  # type: ignore[misc]
        for known in wakeups.clusters()
        if not known.optional
    ]
    parts = [
        Part("launcher", serve_launcher, apart=True),
        Part("web", serve_web),
        *clusters,
        Part("scheduler", serve_scheduler),
    ]
    return Tree(parts, requests)


def _announce(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    address = settings.BASE_URL or f"http://{shown}:{port}"
    print(_("QingLong is at %(address)s/") % {"address": address})
    sys.stdout.flush()
