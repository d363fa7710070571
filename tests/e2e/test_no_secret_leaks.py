"""What was told once is found nowhere afterwards: database, logs, processes, files, answers, pages."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import psycopg
from django_otp.oath import hotp
from psycopg import sql

from tests.e2e.person import PASSWORD, House
from tests.e2e.up_kit import eventually


def stored(house: House) -> Iterator[tuple[str, bytes]]:
    """Every row of every table as text, and on SQLite the bytes of its files."""
    url = house.extra.get("DATABASE_URL")
    if url is None:
        for path in house.up.home.glob("db.sqlite3*"):
            yield path.name, path.read_bytes()
        with contextlib.closing(sqlite3.connect(house.up.home / "db.sqlite3")) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                yield table, repr(connection.execute(f'SELECT * FROM "{table}"').fetchall()).encode()
        return
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in names:
            rows = connection.execute(sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(table)))
            yield table, repr(rows.fetchall()).encode()


def processes(house: House) -> Iterator[tuple[str, bytes]]:
    """Arguments and environment of `up`, all below it, the launcher and what it carries."""
    roots = {house.up.process.pid, house.up.launcher(), *house.up.parts().values()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if int(folder.name) in roots or parent in roots:
                    for name in ("cmdline", "environ"):
                        yield f"{name} of {folder.name}", (folder / name).read_bytes()


def files(house: House) -> Iterator[tuple[str, bytes]]:
    """Everything in the home folder but the two files that hold keys, and what `up` wrote to its terminal."""
    for path in house.up.home.rglob("*"):
        if path.is_file() and path.name not in ("keyring.json", "secret_key"):
            yield str(path.relative_to(house.up.home)), path.read_bytes()
    yield "the terminal", house.up.output.encode()


def answers(house: House, run_id: str, slug: str) -> Iterator[tuple[str, bytes]]:
    """What API and panel say about all that happened."""
    api, browser = house.api, house.browser
    for path in (
        "/me", "/tokens", "/applications", "/people", "/people/invitations", "/projects/default/invitations",
        "/projects", "/projects/default", "/projects/default/tasks", "/projects/default/runs",
        f"/projects/default/tasks/{slug}", "/projects/default/role-bindings", "/projects/default/skips",
        f"/runs/{run_id}", f"/runs/{run_id}/attempts", f"/runs/{run_id}/events", f"/runs/{run_id}/log",
        "/workers", "/projects/default/audit", "/runs/none", "/schema",
    ):  # fmt: skip
        answer = api.call("GET", path)
        yield f"API {path}", repr(answer.headers.items()).encode() + answer.content
    for path in (
        "", "tokens/", "security/", "security/app/", "applications/", "people/", "people/invitations/",
        "workers/", "p/default/", "p/default/audit/", "p/default/tasks/",
        "p/default/runs/", f"p/default/task/{slug}/", f"p/default/task/{slug}/script/", f"runs/{run_id}/",
        f"p/default/task/{slug}/run-with/", "p/none/",
    ):  # fmt: skip
        answer = browser.get(f"/panel/{path}")
        yield f"panel {path}", repr(answer.headers.items()).encode() + answer.content


def credentials(house: House) -> dict[str, str]:
    """Every proof that is told once: client secret and its token, key for codes, recovery code, link for somebody."""
    browser = house.browser
    browser.submit("/panel/applications/", {"type": "api_app", "name": "ci"}, having="type")
    page = browser.address
    made = browser.submit(page, {"name": "c", "kind": "client", "preset": "read"}, having="kind")
    client = re.search(r"ql3c_[A-Za-z0-9_-]{43}", made.text)
    assert client is not None, made.text
    form = {
        "grant_type": "client_credentials", "client_id": page.rstrip("/").rpartition("/")[2],
        "client_secret": client[0],
    }  # fmt: skip
    with urllib.request.urlopen(f"{house.up.address}/oauth/token", urlencode(form).encode()) as answer:
        access = json.load(answer)["access_token"]
    shown = browser.submit("/panel/security/", action="/panel/security/app/begin/")
    key = re.search(r'id="secret">([A-Z2-7 ]+)<', shown.text)
    assert key is not None, shown.text
    plain = key[1].replace(" ", "")
    code = f"{hotp(base64.b32decode(plain), int(time.time()) // 30):06d}"
    recovery = re.search(
        r"[a-z2-9]{4}(-[a-z2-9]{4}){3}",
        browser.submit("/panel/security/app/", {"code": code}, having="code").text,
    )
    assert recovery is not None
    made = browser.submit(
        "/panel/people/invitations/", {"username": "nina", "lifetime": "7"}, having="lifetime"
    )
    link = re.search(r"/invitation/#(ql3i_[A-Za-z0-9_-]{43})", made.text)
    assert link is not None, made.text
    return {
        "invitation": link[1],
        "client secret": client[0], "exchanged token": access, "key for codes": plain, "recovery code": recovery[0],
        "recovery code, bare": recovery[0].replace("-", ""),
    }  # fmt: skip


def test_no_secret_is_found_where_it_does_not_belong(house: House) -> None:
    marker = secrets.token_hex(16)
    api, browser = house.api, house.browser
    session = next(cookie.value for cookie in browser.jar if cookie.name == "ql_session")
    made = browser.submit("/panel/tokens/", {"name": "shown once", "preset": "read"}, having="preset")
    shown = re.search(r"ql3t_[A-Za-z0-9_-]{43}", made.text)
    assert shown is not None and session
    task = api.make(shell="sleep 2; echo done; exit 3")
    run_id = api.start(task, input={"told": marker})
    api.until(run_id, {"running"})
    (lease,) = [value for value in _leases(house) if value]
    secret = {
        "password": PASSWORD, "API token": api.token, "panel's API token": shown[0],
        "session key": session, "input": marker, "lease token": lease, **credentials(house),
    }  # fmt: skip
    places = list(processes(house))
    # Refusals that were given a secret in every part of a request, some of them broken on purpose.
    for path in (f"/runs/{quote(marker)}", f"/projects/{quote(api.token)}", f"/me?format={api.token}"):
        api.call("GET", path)
    api.call("POST", "/tokens", raw=b'{"name": "' + api.token.encode() + b'"')
    api.call("GET", "/me", Authorization=f"Bearer {api.token}x")
    browser.get(f"/setup?token={'A' * 22}.{marker}")
    browser.get(f"/invitation/{secret['invitation']}/")
    browser.get(f"/invitation/?secret={secret['invitation']}")
    browser.submit("/panel/people/", {"username": "x y", "password": PASSWORD}, having="password")
    api.until(run_id)
    eventually(lambda: not list((house.up.home / "node/attempts").glob("*/*")), "the folder is removed")
    places += [*stored(house), *files(house), *processes(house), *answers(house, run_id, task["slug"])]
    # Lease tokens are what a session that died is followed by: they lie in the database, as the spec has it.
    # What a run was given is shown to whoever may read it, on its own page.
    allowed = {("lease token", "run_dispatch_leases"), ("input", f"panel runs/{run_id}/")}
    leaks = sorted(
        {
            (name, place)
            for place, content in places
            for name, value in secret.items()
            if value.encode() in content and (name, place) not in allowed
        }
    )
    leaks = [leak for leak in leaks if not (leak[0] == "lease token" and leak[1].startswith("db.sqlite3"))]
    assert not leaks, leaks


def _leases(house: House) -> list[str]:
    query = "SELECT lease_token FROM run_dispatch_leases WHERE status = 'leased'"
    url = house.extra.get("DATABASE_URL")
    if url is None:
        with contextlib.closing(sqlite3.connect(house.up.home / "db.sqlite3")) as connection:
            return [row[0] for row in connection.execute(query).fetchall()]
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(query).fetchall()]
