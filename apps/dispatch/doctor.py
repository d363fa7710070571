"""What `doctor` looks at: everything that commonly keeps an installation from working, each with a code.

It changes nothing and starts nothing. Failures keep the product from working; warnings say what will not.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from django.conf import settings
from django.core import checks
from django.db import DatabaseError, connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.artifacts import room
from apps.core import health, watchdogs
from apps.core.errors import DomainError
from apps.dispatch import interpreters, recovery, run_as
from apps.dispatch.launcher import cgroups
from apps.dispatch.orphans import SHARDS
from apps.dispatch.services import orphans
from apps.dispatch.supervisor import launcher
from apps.vault import keyring, providers, rekeying
from qinglong.environment import GATE, ConfigurationError

# The job comes round in half an hour.
LEFT_FOR = timedelta(hours=2)


class Level(StrEnum):
    GOOD = "ok"
    WARNING = "warning"
    FAILURE = "FAILED"


@dataclass(frozen=True)
class Finding:
    level: Level
    code: str
    sentence: str | Promise


def examine() -> Iterator[Finding]:
    """Every finding, in the order a start would meet them; later checks are left out where they make no sense."""
    yield from _settings()
    yield from _files()
    yield from _disk()
    reached = False
    for finding in _database():
        reached = finding.level is not Level.FAILURE
        yield finding
    if reached:
        yield from _stored()
        yield from _left()
    yield from _keyring()
    if reached:
        yield from _keys_missing()
    yield from _providers()
    yield from _interpreters()
    yield from _node()


def _settings() -> Iterator[Finding]:
    wrong = [found for found in checks.run_checks() if found.is_serious() and not found.is_silenced()]
    for found in wrong:
        yield Finding(Level.FAILURE, "settings_invalid", f"{found.id}: {found.msg}")
    if not wrong:
        yield Finding(Level.GOOD, "settings", _("The settings can be read."))
    if sys.platform != "linux":
        yield Finding(
            Level.WARNING, "platform_limited", _("Scripts run on Linux only; panel and API work here.")
        )


def _files() -> Iterator[Finding]:
    home = Path(settings.HOME)
    if not os.access(home, os.W_OK | os.X_OK):
        yield Finding(Level.FAILURE, "home_not_writable", _("The home folder cannot be written."))
        return
    candidates = [home, home / "secret_key", home / "db.sqlite3", settings.KEYRING_PATH, settings.NODE_DIR]
    if settings.RUN_AS is not None:  # then their folder keeps nobody out any more
        candidates += [path for path in home.iterdir() if path.name != run_as.HOMES and not path.is_symlink()]
    wide = [path for path in dict.fromkeys(map(Path, candidates)) if path.exists() and _is_open(path)]
    for path in wide:
        yield Finding(
            Level.FAILURE, "file_mode", _("Others may read %(path)s; use chmod go-rwx.") % {"path": path}
        )
    foreign = [path for path in map(Path, candidates) if path.exists() and path.stat().st_uid != os.geteuid()]
    for path in foreign:
        yield Finding(Level.FAILURE, "file_owner", _("%(path)s belongs to another user.") % {"path": path})
    if not wide and not foreign:
        yield Finding(Level.GOOD, "files", _("The home folder %(path)s is private.") % {"path": home})


def _is_open(path: Path) -> bool:
    """Whether others than the owner reach into it; a gate of QINGLONG_RUN_AS lets its group pass and no more."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return bool(mode & 0o077) and mode != GATE


def _disk() -> Iterator[Finding]:
    folder = next(path for path in (Path(settings.LOG_ROOT), Path(settings.HOME)) if path.exists())
    free = shutil.disk_usage(folder).free
    shown = {"free": f"{free / 1024**3:.1f} GiB"}
    if free < watchdogs.FREE_BYTES_MIN:
        yield Finding(Level.FAILURE, "disk_full", _("Only %(free)s are free for logs.") % shown)
    elif free < watchdogs.FREE_BYTES_LOW:
        yield Finding(Level.WARNING, "disk_low", _("Only %(free)s are free for logs.") % shown)
    else:
        yield Finding(Level.GOOD, "disk", _("%(free)s are free for logs.") % shown)
    for code, check in (("log_room", room.room), ("log_folder", room.folder)):
        try:
            wrong = check()
        except DomainError as error:
            wrong = error.detail
        if wrong is not None:
            yield Finding(Level.FAILURE, code, wrong)


def _database() -> Iterator[Finding]:
    name = settings.DATABASES["default"]["NAME"]
    if connection.vendor == "sqlite" and not Path(name).exists():
        yield Finding(Level.FAILURE, "database_missing", _("There is no database yet; `up` makes it."))
        return
    try:
        health.database()
    except DatabaseError:
        yield Finding(
            Level.FAILURE, "database_unreachable", _("The database cannot be reached; check DATABASE_URL.")
        )
        return
    yield Finding(Level.GOOD, "database", _("%(engine)s answers.") % {"engine": connection.display_name})


def _stored() -> Iterator[Finding]:
    named: tuple[tuple[str, Callable[[], health.Sentence | None], str], ...] = (
        ("migrations_pending", health.migrations, "migrations"),
        ("schema_incomplete", health.schema, "schema"),
    )
    for code, check, good in named:
        wrong = check()
        if wrong is not None:
            yield Finding(Level.FAILURE, code, wrong)
            return
        yield Finding(Level.GOOD, good, _("All that this version needs is there."))


def _left() -> Iterator[Finding]:
    """What only a person can judge: runs that nobody touches, and files that nobody could put aside."""
    try:
        runs = recovery.ambiguous()
        found = sum(
            orphans.audit(start=start, shards=orphans.MAX_SHARDS, min_age=LEFT_FOR).counts["eligible"]
            for start in range(0, len(SHARDS), orphans.MAX_SHARDS)
        )
    except (DatabaseError, OSError):
        return  # what is wrong there has been said
    if runs:
        yield Finding(
            Level.WARNING,
            "runs_ambiguous",
            _("Several attempts are under way of each of these runs, and nobody touches them: %(runs)s")
            % {"runs": ", ".join(map(str, runs))},
        )
    if found:
        yield Finding(
            Level.WARNING,
            "node_leftovers",
            _(
                "%(number)s files or folders of this node belong to nobody and were not put aside; "
                "audit_receipts lists them."
            )
            % {"number": found},
        )


def _keyring() -> Iterator[Finding]:
    if not os.path.lexists(settings.KEYRING_PATH):
        yield Finding(Level.WARNING, "keyring_missing", _("There is no keyring yet; `up` makes it."))
        return
    try:
        keyring.load().wipe()
    except DomainError as error:
        yield Finding(Level.FAILURE, error.code, error.detail)
        return
    yield Finding(Level.GOOD, "keyring", _("The keyring can be used."))


def _providers() -> Iterator[Finding]:
    """Where values of secrets lie outside the database; nothing to say where that is not set up."""
    for name, provider in providers.in_use().items():
        wrong = provider.trouble()
        if wrong is not None:
            yield Finding(Level.FAILURE, f"secret_{name}_unusable", wrong)
        else:
            told = _("Secrets may lie elsewhere: %(title)s.") % {"title": provider.title}
            yield Finding(Level.GOOD, f"secret_{name}", told)


def _keys_missing() -> Iterator[Finding]:
    """Sealed values whose key is not in the keyring: nobody opens them any more, unless it is put back."""
    try:
        missing = rekeying.without_key()
    except (DomainError, DatabaseError):
        return  # what is wrong there has been said
    if missing:
        yield Finding(
            Level.WARNING,
            "keys_missing",
            _(
                "%(number)s sealed values need a key that the keyring does not have; put it back from a backup."
            )
            % {"number": missing},
        )


def _interpreters() -> Iterator[Finding]:
    path = settings.SCRIPT_PATH
    for language, known in interpreters.INTERPRETERS.items():
        usable = interpreters.candidates(language, path)
        found = next((place for command in usable if (place := shutil.which(command[0], path=path))), None)
        if found is not None:
            yield Finding(Level.GOOD, language, f"{language}: {found}")
            continue
        # Shell is what `before`, `after` and shell tasks need: without it nothing works.
        level = Level.FAILURE if language == "shell" else Level.WARNING
        names = ", ".join(interpreters.wanted(language, command[0]) for command in known)
        yield Finding(
            level,
            f"{language}_missing",
            _("Scripts in %(language)s cannot run: none of %(names)s is on QINGLONG_PATH.")
            % {"language": language, "names": names},
        )


def _node() -> Iterator[Finding]:
    if launcher.reachable():
        yield Finding(Level.GOOD, "launcher", _("The launcher of this node answers."))
    else:
        yield Finding(
            Level.WARNING,
            "launcher_not_running",
            _("No launcher runs on this node: scripts cannot start here."),
        )
    yield _limits()
    if settings.RUN_AS is None:
        yield Finding(
            Level.WARNING,
            "run_as_unset",
            _(
                "Scripts run as the user of the panel: whoever may edit a task can read what that user can read."
            ),
        )
        return
    try:
        run_as.check()
    except ConfigurationError as error:
        yield Finding(Level.FAILURE, error.code, str(error))
        return
    yield Finding(Level.GOOD, "run_as", _("Scripts run as %(user)s.") % {"user": settings.RUN_AS})


def _limits() -> Finding:
    """What the launcher of this node can hold scripts to; without one, what this process could."""
    held = cgroups.kept(launcher.peer() or "self")[1]
    if held >= set(cgroups.CONTROLLERS.values()):
        return Finding(Level.GOOD, "limits", _("Every limit of a task can be kept here."))
    return Finding(
        Level.WARNING,
        "limits_partial",
        _(
            "Without control groups of its own this node keeps memory_bytes for each process only, processes for "
            "the user of QINGLONG_RUN_AS only, and cpu_percent not at all."
        ),
    )
