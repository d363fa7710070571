"""Loads and warms up, once and in the parent, what every part of the tree needs.

What is first touched after the fork is private to each process and paid for by each: imports, compiled
patterns, templates, translations, the ORM's caches. So the parent does a little of everything, closes its
connection again, and only then forks (dispatch-notes.md, "Memory").
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils import translation

from apps.core import clock, control, health, wakeups
from apps.dispatch import heap
from apps.dispatch.supervisor import cluster, process, web

# What libraries take up where it is installed, for what nothing here uses: 7 MiB.
_SPARED = ("jinja2", "markdown", "pygments", "requests")
_MODULES = ("apps.dispatch.session", "apps.access.backends", "apps.access.authentication", "unfold.sites")
# One of each kind: a page, an API refusal, a health check, a static file.
_PATHS = ("/panel/login/", "/api/v3/me", "/readyz", "/static/nothing.css")


def preload() -> None:
    """Raises RuntimeError when something left a connection or a thread: neither survives a fork."""
    gc.disable()  # until after the fork: a collection would only spread what is to be shared
    heap.few_arenas()
    with _spared():
        importlib.import_module("rest_framework.compat")
        importlib.import_module("django.test.utils")
    web.preload()
    cluster.preload()
    for name in _MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            if find_spec(name):
                importlib.import_module(name)
    _warm_up()
    process.protect()
    if threading.active_count() > 1 or any(c.connection for c in connections.all(initialized_only=True)):
        raise RuntimeError("the parent of the tree must hold no thread and no connection")


@contextlib.contextmanager
def _spared() -> Iterator[None]:
    """Whoever asks for one of these meanwhile is told that it is not installed."""
    hidden = [name for name in _SPARED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _warm_up() -> None:
    logging.disable(logging.CRITICAL)
    try:
        for language, _ in settings.LANGUAGES:
            with translation.override(language):
                translation.gettext("Yes")
                for path in _PATHS:
                    _request(path)
        control.due(clock.now())
        wakeups.unanswered(clock.now())
    finally:
        connections.close_all()
        health.forget()
        logging.disable(logging.NOTSET)


def _request(path: str) -> None:
    from qinglong.wsgi import application

    host = next((name for name in settings.ALLOWED_HOSTS if "*" not in name), "localhost")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "SERVER_NAME": host,
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": host,
        "HTTP_ACCEPT": "text/html",
        "HTTP_ACCEPT_LANGUAGE": translation.get_language() or "en",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.url_scheme": "http",
    }
    # Whatever a page has to complain about is for the first real visitor, not for the start.
    with contextlib.suppress(Exception):
        response = application(environ, _ignore)
        try:
            b"".join(response)
        finally:
            close = getattr(response, "close", None)
            if close is not None:
                close()


def _ignore(_status: str, _headers: object, _error: object = None) -> Any:
    return None
