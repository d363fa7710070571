"""The web process: gunicorn in this process, one worker with threads, on a socket that is bound already."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker

from apps.dispatch.supervisor import process
from qinglong.environment import ConfigurationError

BACKLOG = 512
THREADS = 8
GRACE_S = 5
REQUEST_S = 15.0


def bind(host: str, port: int) -> socket.socket:
    """Listens at once, so that nobody else can; raises ConfigurationError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except PermissionError as error:
        raise ConfigurationError("port_not_allowed", f"Port {port} may only be opened by root.") from error
    except OSError as error:
        raise ConfigurationError(
            "port_in_use" if error.errno == 98 else "address_invalid",
            f"The address {host}:{port} cannot be opened: {error.strerror}. Choose another with --port or --host.",
        ) from error
    return listener


class Worker(ThreadWorker):  # type: ignore[misc]
    """Threads, each of which waits at most `REQUEST_S` seconds for a request to be there as a whole.

    Without that a handful of connections that never finish their request would hold every thread for ever. All
    of this runs in the worker's main thread.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since: dict[Any, float] = {}

    def enqueue_req(self, conn: Any) -> None:
        """Called by gunicorn when a connection is given to a thread."""
        self._since[conn] = time.monotonic()
        super().enqueue_req(conn)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Called by gunicorn when the thread is done with it."""
        self._since.pop(conn, None)
        super().finish_request(conn, fs)

    def murder_pending(self) -> None:
        """Called by gunicorn every second or more often."""
        super().murder_pending()
        due = time.monotonic() - REQUEST_S
        for conn in [conn for conn, since in self._since.items() if since <= due]:
            del self._since[conn]
            # Only reading ends: an answer that is long under way goes on.
            with suppress(OSError):
                conn.sock.shutdown(socket.SHUT_RD)


class Application(BaseApplication):  # type: ignore[misc]
    """Our WSGI application with the few settings that matter; nothing is read from gunicorn's own files."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in self._options().items():
            self.cfg.set(name, value)

    def load(self) -> Callable[..., Any]:
        """Called by gunicorn in the worker; loaded by our parent long before."""
        from qinglong.wsgi import application

        return application

    def _options(self) -> dict[str, Any]:
        return {
            "bind": f"fd://{self._listener.fileno()}",
            "worker_class": Worker,
            "workers": 1,
            "threads": THREADS,
            "keepalive": 5,
            "timeout": 60,
            "graceful_timeout": GRACE_S,
            "loglevel": "warning",
            "control_socket_disable": True,
            "forwarded_allow_ips": "",  # `qinglong.proxy` decides who is believed
            "post_fork": _after_fork,
            "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,  # noqa: S108
        }


def preload() -> None:
    """Imports what a web worker needs before it is forked."""
    import gunicorn.arbiter
    import gunicorn.http.wsgi
    import gunicorn.workers.gthread  # noqa: F401
    from django.urls import get_resolver

    import qinglong.wsgi  # noqa: F401

    get_resolver()._populate()


def run(listener: socket.socket) -> int:
    """Serves until SIGTERM; returns the exit code."""
    try:
        Application(listener).run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def _after_fork(arbiter: Any, _worker: object) -> None:
    process.end_with_parent(arbiter.pid)
    process.name("ql web worker")
