"""What was told once is found nowhere afterwards: database, logs, processes, files, answers, pages."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import sqlite3
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
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


# Shows its secrets in every way that comes to mind, ends with an error that names one, and leaves them as its output.
TELLER = """
import base64, json, os, sys, time, urllib.parse
told = [os.environ["PLAIN"], open(os.environ["KEPT_FILE"]).read()]
print(os.environ["PLAIN"], flush=True)
for value in told:
    print("and:", value, base64.b64encode(value.encode()).decode(), urllib.parse.quote(value, safe=""), flush=True)
    print(json.dumps({"value": value}), file=sys.stderr, flush=True)
with open(os.environ["QINGLONG_OUTPUT"], "w") as output:
    json.dump({"told": told}, output)
open(sys.argv[1], "w").write(os.environ["KEPT_FILE"])
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.05)
raise SystemExit("ended by " + told[0])
"""


def everywhere(run_id: str) -> Iterator[tuple[str, bytes]]:
    """Arguments of every process there is, and the environment of all but the script's own."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                environ = (folder / "environ").read_bytes()
                yield f"cmdline of {folder.name}", (folder / "cmdline").read_bytes()
                if f"QINGLONG_RUN_ID={run_id}".encode() not in environ:
                    yield f"environ of {folder.name}", environ


def temporary(since: float) -> Iterator[tuple[str, bytes]]:
    """What was written since then below the machine's temporary folder, as long as it can be looked at."""
    for path in Path(tempfile.gettempdir()).rglob("*"):
        with contextlib.suppress(OSError):
            if (
                path.is_file()
                and not path.is_symlink()
                and path.stat().st_mtime >= since
                and path.stat().st_size < 2**22
            ):
                yield str(path), path.read_bytes()


def secret_pages(house: House, slug: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Every page and answer about secrets and what uses them."""
    browser, p = house.browser, "p/default"
    for path in (
        f"{p}/secrets/", *(f"{p}/secrets/{name}/{end}" for name in names for end in ("", "disable/")),
        f"{p}/task/{slug}/edit/", f"{p}/task/{slug}/revisions/", f"{p}/task/{slug}/revisions/1/", f"{p}/audit/",
        f"{p}/tasks/new/",
    ):  # fmt: skip
        answer = browser.get(f"/panel/{path}")
        assert answer.status == 200, path
        yield f"panel {path}", repr(answer.headers.items()).encode() + answer.content
    for path in ("/projects/default/secrets", f"/projects/default/tasks/{slug}/revisions"):
        answer = house.browser.get(f"/api/v3{path}")
        assert answer.status == 200, path
        yield f"API {path}", repr(answer.headers.items()).encode() + answer.content


def test_secrets_of_a_task_are_found_nowhere_but_with_its_script(house: House, tmp_path: Path) -> None:
    """Set in the panel, given by variable and by file, told by a script in many ways: never seen by anybody."""
    since = time.time() - 1
    api, browser, log = house.api, house.browser, tmp_path / "where"
    plain, kept, old = (f"{secrets.token_hex(12)}/+é{secrets.token_hex(4)}" for _ in range(3))
    for name, value, at in (("plain", old, 0), ("plain", plain, 1), ("kept", kept, 0)):
        url = "/panel/p/default/secrets/" + (f"{name}/" if at else "")
        sent = {"value": value} | ({} if at else {"name": name})
        answer = browser.submit(url, sent, having="value")
        assert f"Stored: {name}" in answer.text, answer.text
    task = api.make(
        script={"language": "python", "source": TELLER, "args": [str(log)]},
        secrets={"PLAIN": "plain", "KEPT": {"secret": "kept", "as": "file"}},
    )
    run_id = api.start(task)
    eventually(lambda: log.exists() and log.read_text(), "the script to have told everything")
    assert Path(log.read_text()).read_text() == kept
    live = [*everywhere(run_id), *stored(house), *answers(house, run_id, task["slug"])]
    live += secret_pages(house, task["slug"], ["plain", "kept"])
    # Refusals that were given a value in every part of a request, some of them broken on purpose.
    for body in ({"value": plain}, {"value": plain, "expected_version": "x", "mutation_id": plain}, [plain]):
        api.call("PUT", "/projects/default/secrets/plain", body)
    api.call("PUT", "/projects/default/secrets/plain", raw=b'{"value": "' + plain.encode() + b'"')
    answer = browser.submit(
        "/panel/p/default/secrets/", {"name": "not a name", "value": plain}, having="value"
    )
    live.append(("the refusal of the panel", answer.content))
    api.call(
        "POST", "/projects/default/tasks", {"name": "x", "shell": "true", "secrets": {"A": {"secret": plain}}}
    )
    Path(f"{log}.go").touch()
    ended = api.until(run_id)
    assert (ended["status"], ended["exit_code"]) == ("failed", 1)
    eventually(lambda: not list((house.up.home / "node/attempts").glob("*/*")), "the folder is removed")
    shown = api.call("GET", f"/runs/{run_id}/log").content
    assert shown.count(b"and:") == 2 and b"ended by" in shown, shown
    live += [
        *everywhere(run_id),
        *stored(house),
        *files(house),
        *temporary(since),
        *answers(house, run_id, task["slug"]),
    ]
    live += secret_pages(house, task["slug"], ["plain", "kept"])
    forms = {
        f"{name} {way}": text
        for name, value in (("plain", plain), ("kept", kept), ("old", old))
        for way, text in (
            ("as it is", value.encode()),
            ("in base64", base64.b64encode(value.encode()).rstrip(b"=")[:-1]),
            ("in an address", quote(value, safe="").encode()),
            ("in JSON", json.dumps(value).strip('"').encode()),
            ("its first half", value.split("/")[0].encode()),
        )
    }
    leaks = sorted(
        {(name, place) for place, content in live for name, text in forms.items() if text in content}
    )
    assert not leaks, leaks


def _leases(house: House) -> list[str]:
    query = "SELECT lease_token FROM run_dispatch_leases WHERE status = 'leased'"
    url = house.extra.get("DATABASE_URL")
    if url is None:
        with contextlib.closing(sqlite3.connect(house.up.home / "db.sqlite3")) as connection:
            return [row[0] for row in connection.execute(query).fetchall()]
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(query).fetchall()]
