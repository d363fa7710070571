"""A throw-away installation to measure on: home folder, database, processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Stage:
    """Where things are; `url` is None on SQLite."""

    home: Path
    url: str | None

    @property
    def engine(self) -> str:
        return "PostgreSQL" if self.url else "SQLite"

    def env(self, **extra: str) -> dict[str, str]:
        """The environment of a process of this installation."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("QINGLONG_")}
        kept.pop("DATABASE_URL", None)
        kept.update(QINGLONG_HOME=str(self.home), PYTHONPATH=str(ROOT), **extra)
        if self.url:
            kept["DATABASE_URL"] = self.url
        return kept

    def manage(self, *args: str, **extra: str) -> subprocess.Popen[bytes]:
        """Starts `manage.py …`."""
        command = [sys.executable, str(ROOT / "manage.py"), *args]
        return subprocess.Popen(command, env=self.env(**extra), cwd=ROOT)

    def call(self, *args: str, **extra: str) -> None:
        """Runs `manage.py …` to its end."""
        if self.manage(*args, **extra).wait() != 0:
            raise SystemExit(f"manage.py {args[0]} failed")

    def output(self, *args: str) -> str:
        """What `manage.py …` printed."""
        command = [sys.executable, str(ROOT / "manage.py"), *args]
        done = subprocess.run(
            command, env=self.env(), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def spawn(self, name: str, *args: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
        """Starts a function of this package inside Django."""
        return subprocess.Popen(self._command(name, *args), env=self.env(), cwd=ROOT, stdout=stdout)

    def script(self, name: str, *args: str) -> str:
        """Runs a function of this package inside Django and returns what it printed."""
        done = subprocess.run(
            self._command(name, *args),
            env=self.env(),
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    def _command(self, name: str, *args: str) -> list[str]:
        code = (
            "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'qinglong.settings'\n"
            "import django; django.setup()\n"
            "import importlib; module, function = sys.argv[1].split(':')\n"
            "getattr(importlib.import_module(module), function)(*sys.argv[2:])"
        )
        return [sys.executable, "-c", code, name, *args]


@contextlib.contextmanager
def stage(server: str | None) -> Iterator[Stage]:
    """A migrated installation with a keyring, on `server` (a database URL) or SQLite; gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="ql-bench-"))
    try:
        with database(server) as url:
            made = Stage(home, url)
            made.call("migrate", "-v0")
            made.script("bench.stage:prepare")
            try:
                yield made
            finally:
                _end_launcher(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def database(server: str | None) -> Iterator[str | None]:
    """A fresh database on the server, dropped at the end."""
    if server is None:
        yield None
        return
    name = f"ql_bench_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def prepare() -> None:
    """Inside Django: what `up` makes before it starts anything."""
    from apps.vault import keyring

    keyring.ensure()


def servers() -> list[str | None]:
    """What to measure on: SQLite, and the server of DATABASE_URL where one is named."""
    url = os.environ.get("DATABASE_URL")
    return [url, None] if url else [None]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and waits for it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_launcher(home: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((home / "node" / "launcher.lock").read_text()), signal.SIGTERM)
