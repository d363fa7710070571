"""What `up` does before anything runs: checks first, then migrations, keys and the set-up link.

Everything here that touches the database runs in a child, so that the parent of the tree never holds a
connection. A refusal is one line with a code on stderr, and leaves nothing half-made.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection

from apps.core import clock, control, health, node, runtime
from apps.core.errors import DomainError
from apps.core.watchdogs import FREE_BYTES_MIN
from apps.dispatch.services import nodes
from qinglong.environment import ConfigurationError, private_folder

OLDEST_POSTGRESQL = 140_000
REFUSED = 78
FAILED = 1
# How long the processes of an `up` that was killed may take to end.
PATIENCE_S = 20.0


def check_home() -> None:
    """The folders can be written and have room; raises ConfigurationError."""
    for folder, code in (
        (settings.HOME, "home_not_writable"),
        (settings.RUN_DIR, "home_not_writable"),
        (settings.LOG_ROOT, "logs_not_writable"),
    ):
        path = private_folder(Path(folder), code)
        probe = path / f".probe.{os.getpid()}"
        try:
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(code, f"Nothing can be written to {path}: {error.strerror}.") from error
    if shutil.disk_usage(settings.HOME).free < FREE_BYTES_MIN:
        raise ConfigurationError("disk_full", f"Less than 64 MiB are free at {settings.HOME}.")


def lock() -> node.Lock:
    """The right to be the one `up` of this node; raises ConfigurationError."""
    try:
        with suppress(FileNotFoundError):
            runtime.check_root(Path(settings.NODE_DIR))  # before anything narrows it
        return node.up_lock(wait_s=PATIENCE_S)
    except node.AlreadyRunning as error:
        raise _already_running() from error
    except runtime.RuntimeUnsafe as error:
        raise _unsafe(error) from error
    except node.NodeUnusable as error:
        raise ConfigurationError(error.code, f"The folder {settings.NODE_DIR} cannot be used.") from error


def activate() -> runtime.Runtime:
    """Puts on record that this process runs the home (runs.md §13.2); raises ConfigurationError."""
    root = Path(settings.NODE_DIR)
    try:
        return runtime.activate(root, "edge" if connection.vendor == "sqlite" else "standalone")
    except runtime.RuntimeConflict as error:
        raise _already_running() from error
    except runtime.RuntimeUnsafe as error:
        raise _unsafe(error) from error
    except OSError as error:
        raise ConfigurationError("node_unusable", f"The folder {root} cannot be used.") from error


def _already_running() -> ConfigurationError:
    return ConfigurationError(
        node.AlreadyRunning.code,
        f"QingLong is already running on {settings.HOME}; stop it first or use another QINGLONG_HOME.",
    )


def _unsafe(error: runtime.RuntimeUnsafe) -> ConfigurationError:
    reason = error.extra["reason"]
    path = Path(settings.NODE_DIR)
    if reason in ("not_a_folder", "foreign_owner", "writable_by_others"):
        return ConfigurationError(
            error.code, f"{path} must be a folder of this user that nobody else can write to ({reason})."
        )
    return ConfigurationError(
        error.code,
        f"{path / runtime.NAME} cannot be trusted ({reason}); make sure that no QingLong runs on this home, "
        "then remove the file.",
    )


def migrate(announce: Callable[[], None]) -> int:
    """Run in a child: checks the database, migrates, makes the keys, announces; returns the exit code."""
    try:
        _reach_database()
        _refuse_other("schema_newer", health.newer())
        call_command("migrate", interactive=False, verbosity=0)
        _refuse_other("schema_mismatch", health.schema())
        _ensure_keyring()
        control.enrol(clock.now())
        nodes.meet(node.node_id())
        announce()
    except ConfigurationError as error:
        return _refuse(error.code, str(error), REFUSED)
    except DomainError as error:
        return _refuse(error.code, str(error.detail), REFUSED)
    except DatabaseError as error:
        return _refuse(
            "migration_failed", f"The database could not be brought up to date: {_line(error)}", FAILED
        )
    finally:
        connection.close()
    return 0


def in_child(work: Callable[[], int]) -> int:
    """Runs `work` in a forked child and returns its exit code, 128 + n after a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = FAILED
        try:
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _reach_database() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        raise ConfigurationError(
            "database_unreachable", f"The database cannot be reached; check DATABASE_URL. {_line(error)}"
        ) from error
    if connection.vendor == "postgresql" and getattr(connection, "pg_version", 0) < OLDEST_POSTGRESQL:
        raise ConfigurationError("database_too_old", "QingLong needs PostgreSQL 14 or newer.")


def _refuse_other(code: str, wrong: health.Sentence | None) -> None:
    """Ends the start on a database of another version: no part of the tree could work with it."""
    if wrong is not None:
        raise ConfigurationError(code, str(wrong))


def _ensure_keyring() -> None:
    from apps.vault import keyring

    keyring.ensure()


def _refuse(code: str, sentence: str, status: int) -> int:
    print(f"qinglong: {sentence} [{code}]", file=sys.stderr)
    return status


def _line(error: Exception) -> str:
    """The first line of a driver's message, without the address it may quote."""
    text = str(error).strip().splitlines()
    password = str(settings.DATABASES["default"].get("PASSWORD") or "")
    first = text[0] if text else type(error).__name__
    return first.replace(password, "***") if password else first
