"""Whether this process is up and whether the system can do its work (api.md, /livez and /readyz).

A check returns None or says what is wrong; apps register theirs in a module `health`. The answer names failed
checks by code; what is wrong in words is for instance administrators.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.core.errors import DomainError
from apps.core.models import ControlJob

FREE_BYTES_MIN = 64 * 1024 * 1024
SCHEDULER_SILENT = timedelta(minutes=3)
# Anybody may ask, so the answer is worked out at most this often.
KEPT_S = 2.0

Check = Callable[[], str | None]

logger = logging.getLogger("qinglong.health")


@dataclass(frozen=True)
class _Registered:
    check: Check
    lasting: bool


_checks: dict[str, _Registered] = {}
_passed: set[str] = set()
_lock = threading.Lock()
_kept: tuple[float, dict[str, str]] | None = None


def register(code: str, check: Check, *, lasting: bool = False) -> None:
    """Adds a check: a few cheap queries or system calls. A `lasting` one is not asked again once it passed."""
    _checks[code] = _Registered(check, lasting)


def failures() -> dict[str, str]:
    """Code and words of each failed check; without a database nothing else is asked."""
    if (wrong := _ask("database")) is not None:
        return {"database": wrong}
    found = {code: _ask(code) for code in _checks if code != "database"}
    return {code: wrong for code, wrong in found.items() if wrong is not None}


def forget() -> None:
    """Drops the kept answer: a process that is about to fork must not leave its own to the others."""
    global _kept
    _kept = None


def _ask(code: str) -> str | None:
    registered = _checks[code]
    if code in _passed:
        return None
    try:
        wrong = registered.check()
    except (DatabaseError, DomainError, OSError) as error:
        wrong = type(error).__name__
    if wrong is None and registered.lasting:
        _passed.add(code)
    return wrong


def _recent() -> dict[str, str]:
    global _kept
    with _lock:
        if _kept is None or _kept[0] <= time.monotonic() - KEPT_S:
            before = {} if _kept is None else _kept[1]
            _kept = (time.monotonic(), failures())
            if _kept[1].keys() != before.keys():
                logger.warning("failed checks: %s", ", ".join(sorted(_kept[1])) or "none")
        return _kept[1]


@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """The process answers; nothing else is looked at."""
    return HttpResponse("ok\n", content_type="text/plain", headers={"Cache-Control": "no-store"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200, or 503 with the codes of failed checks."""
    failed = _recent()
    body: dict[str, object] = {"status": "failing" if failed else "ok", "failed": sorted(failed)}
    if failed and _administrator(request):
        body["details"] = failed
    answer = JsonResponse(body, status=503 if failed else 200, headers={"Cache-Control": "no-store"})
    # Django would log every 503; a probe asks every few seconds, and one line per change says more.
    answer._has_been_logged = True  # type: ignore[attr-defined]
    return answer


def _administrator(request: HttpRequest) -> bool:
    try:
        return request.user.is_active and request.user.is_superuser
    except DatabaseError:
        return False


def database() -> str | None:
    """Whether it answers."""
    connection.ensure_connection()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return None


def migrations() -> str | None:
    """Whether everything this version brings has been applied."""
    executor = MigrationExecutor(connection)
    waiting = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return f"{len(waiting)} migrations are not applied" if waiting else None


def schema() -> str | None:
    """Whether every table is there, whatever the list of migrations claims."""
    there = set(connection.introspection.table_names())
    missing = sorted(model._meta.db_table for model in apps.get_models() if model._meta.db_table not in there)
    return f"missing tables: {', '.join(missing)}" if missing else None


def unusable() -> tuple[str, str] | None:
    """Code and sentence where a command finds no database to work with; makes none."""
    # SQLite makes an empty file of whatever name it is asked for.
    if connection.vendor == "sqlite" and not Path(settings.DATABASES["default"]["NAME"]).exists():
        return "database_missing", _("There is no database in %(home)s yet; `up` makes it.") % {
            "home": settings.HOME
        }
    try:
        database()
        waiting = migrations()
    except DatabaseError:
        return "database_unreachable", _("The database cannot be reached; check DATABASE_URL.")
    if waiting is not None:
        return "migrations_pending", _(
            "The database is empty or of an older version: `up` makes it ready; check QINGLONG_HOME and DATABASE_URL."
        )
    return None


def scheduler() -> str | None:
    """Whether control jobs are run: that takes the scheduler, the queue and the control cluster."""
    newest = ControlJob.objects.order_by("-last_started_at").exclude(last_started_at=None).first()
    if newest is None or newest.last_started_at is None:
        return "no control job has run yet"
    silent = clock.now() - newest.last_started_at
    return f"no control job for {int(silent.total_seconds())} s" if silent > SCHEDULER_SILENT else None


def disk() -> str | None:
    """Whether there is room for logs and the database."""
    low = [
        str(folder)
        for folder in (settings.HOME, settings.LOG_ROOT)
        if folder.exists() and shutil.disk_usage(folder).free < FREE_BYTES_MIN
    ]
    return f"less than 64 MiB free: {', '.join(low)}" if low else None


register("database", database)
register("migrations", migrations, lasting=True)
register("schema", schema, lasting=True)
register("scheduler", scheduler)
register("disk", disk)
