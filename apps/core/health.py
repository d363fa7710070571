"""Whether this process is up and whether the system can do its work (api.md, /livez and /readyz).

A check returns None or a sentence that says what is wrong and what to do; apps register theirs in a module
`health`. /readyz names failed checks by code; sentences are for instance administrators, who also find them on
the dashboard, beside warnings: what keeps nothing from working yet.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from apps.core import db
from apps.core.errors import DomainError

# Anybody may ask, so the answer is worked out at most this often.
KEPT_S = 2.0
NAMED = 3

# Kept for readers of either language, so translated when read.
Sentence = str | Promise
Check = Callable[[], Sentence | None]
T = TypeVar("T")

logger = logging.getLogger("qinglong.health")


@dataclass(frozen=True)
class Problem:
    """What is wrong: a stable code, what to do, and whether it fails the system or only warns."""

    code: str
    sentence: Sentence
    failing: bool


@dataclass(frozen=True)
class _Registered:
    check: Check
    lasting: bool
    failing: bool


_checks: dict[str, _Registered] = {}
_passed: set[str] = set()
_lock = threading.Lock()
_round = threading.local()
_kept: tuple[float, list[Problem]] | None = None


def register(code: str, check: Check, *, lasting: bool = False, failing: bool = True) -> None:
    """Adds a check: a few cheap queries or system calls. A `lasting` one is not asked again once it passed; one
    that is not `failing` is a warning.
    """
    _checks[code] = _Registered(check, lasting, failing)


def codes() -> list[str]:
    """Of all that is looked at, whether found or not."""
    return sorted(_checks)


def shared(function: Callable[[], T]) -> Callable[[], T]:
    """Makes what several checks ask about be worked out once for a round of them; outside of one it is not kept."""

    @functools.wraps(function)
    def ask() -> T:
        known: dict[object, Any] | None = getattr(_round, "known", None)
        if known is None:
            return function()
        if function not in known:
            known[function] = function()
        found: T = known[function]
        return found

    return ask


def problems() -> list[Problem]:
    """What is wrong now, failures first; without a database nothing else is asked."""
    if _ask("database") is not None:
        return [
            Problem("database", gettext_lazy("The database cannot be reached; check DATABASE_URL."), True)
        ]
    _round.known = {}
    try:
        found = [
            Problem(code, wrong, known.failing)
            for code, known in _checks.items()
            if code != "database" and (wrong := _ask(code)) is not None
        ]
    finally:
        _round.known = None
    return sorted(found, key=lambda problem: (not problem.failing, problem.code))


def recent(within_s: float = KEPT_S) -> list[Problem]:
    """The same, worked out within the last seconds."""
    global _kept
    with _lock:
        if _kept is None or _kept[0] <= time.monotonic() - within_s:
            before = [] if _kept is None else _failed(_kept[1])
            _kept = (time.monotonic(), problems())
            if (now := _failed(_kept[1])) != before:
                logger.warning("failed checks: %s", ", ".join(now) or "none")
        return _kept[1]


def forget() -> None:
    """Drops the kept answer: a process that is about to fork must not leave its own to the others."""
    global _kept
    _kept = None


def _ask(code: str) -> Sentence | None:
    registered = _checks[code]
    if code in _passed:
        return None
    try:
        wrong = registered.check()
    except DomainError as error:
        wrong = error.detail
    except (DatabaseError, OSError) as error:
        wrong = format_lazy(
            gettext_lazy("This could not be looked at ({error}); the log says more."),
            error=type(error).__name__,
        )
    if wrong is None and registered.lasting:
        _passed.add(code)
    return wrong


def _failed(found: list[Problem]) -> list[str]:
    return [problem.code for problem in found if problem.failing]


@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """The process answers; nothing else is looked at."""
    return HttpResponse("ok\n", content_type="text/plain", headers={"Cache-Control": "no-store"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200, or 503 with the codes of failed checks; warnings by code in either."""
    found = recent()
    failed = _failed(found)
    warned = [problem.code for problem in found if not problem.failing]
    body: dict[str, object] = {"status": "failing" if failed else "ok", "failed": failed, "warnings": warned}
    if failed and _administrator(request):
        body["details"] = {problem.code: str(problem.sentence) for problem in found if problem.failing}
    answer = JsonResponse(body, status=503 if failed else 200, headers={"Cache-Control": "no-store"})
    # Django would log every 503; a probe asks every few seconds, and one line per change says more.
    answer._has_been_logged = True  # type: ignore[attr-defined]
    return answer


def _administrator(request: HttpRequest) -> bool:
    try:
        return request.user.is_active and request.user.is_superuser
    except DatabaseError:
        return False


def database() -> Sentence | None:
    """Whether it answers."""
    connection.ensure_connection()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return None


def migrations() -> Sentence | None:
    """Whether everything this version brings has been applied."""
    executor = MigrationExecutor(connection)
    waiting = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if not waiting:
        return None
    return format_lazy(
        gettext_lazy("{n} migrations are not applied: `up` applies them when it starts."), n=len(waiting)
    )


def schema() -> Sentence | None:
    """Whether every table and column is there, whatever the list of migrations claims."""
    wanted = {
        (model._meta.db_table, str(field.column))
        for model in apps.get_models()
        for field in model._meta.local_concrete_fields
    }
    missing = sorted(f"{table}.{column}" for table, column in wanted - db.columns())
    if not missing:
        return None
    shown = ", ".join(missing[:NAMED]) + (" …" if len(missing) > NAMED else "")
    return format_lazy(
        gettext_lazy(
            "The database is of another version of QingLong: {names} is missing. Start the version that made it, "
            "restore a backup, or use another QINGLONG_HOME or DATABASE_URL."
        ),
        names=shown,
    )


def newer() -> Sentence | None:
    """Whether a later version of QingLong has been at work on the database."""
    loader = MigrationLoader(connection)
    own = {config.label for config in apps.get_app_configs()}
    unknown = [
        key for key in loader.applied_migrations if key[0] in own and key not in loader.disk_migrations
    ]
    if not unknown:
        return None
    return format_lazy(
        gettext_lazy(
            "The database is of a newer version of QingLong ({names} is applied). Start that version, or restore "
            "a backup made before it."
        ),
        names=", ".join(f"{app}.{name}" for app, name in sorted(unknown)[:NAMED]),
    )


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


register("database", database)
register("migrations", migrations, lasting=True)
register("schema", schema, lasting=True)
