"""A home that is migrated, and set up, once per test process, and copied from then on.

Making tables, an account and a token takes seconds of a processor each time; `up` finds all of it there. That it
makes them itself is what tests/e2e/test_up.py and test_panel_first_minute.py begin with.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.person import manage, set_up


@dataclass(frozen=True)
class Template:
    """A home nobody runs on; `database` is the name of its own on PostgreSQL."""

    home: Path
    database: str
    token: str


def furnish(home: Path, *, owned: bool = False, **extra: str) -> str:
    """Makes a home and fills the empty database of `extra`; with `owned` returns the token of its first person."""
    made = _template(owned)
    shutil.copytree(made.home, home)
    if made.database:
        name = _name(extra["DATABASE_URL"])
        _execute(f"DROP DATABASE {name} WITH (FORCE)", f"CREATE DATABASE {name} TEMPLATE {made.database}")
    return made.token


@functools.cache
def _template(owned: bool) -> Template:
    folder = Path(tempfile.mkdtemp(prefix="ql-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home, name, extra = folder / "home", "", {}
    if url := os.environ.get("DATABASE_URL"):
        name = f"ql_e2e_template_{secrets.token_hex(4)}"
        extra = {"DATABASE_URL": urlsplit(url)._replace(path=f"/{name}").geturl()}
        _execute(f"CREATE DATABASE {name}")
        atexit.register(_execute, f"DROP DATABASE {name} WITH (FORCE)")
    if not owned:
        manage(home, "migrate", "-v0", **extra)
        return Template(home, name, "")
    furnish(home, **extra)
    return Template(home, name, set_up(home, **extra))


def _name(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


def _execute(*statements: str) -> None:
    import psycopg

    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)
