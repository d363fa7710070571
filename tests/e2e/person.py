"""A person at a running panel: the API with a token, and the pages with a browser that runs no script."""

from __future__ import annotations

import contextlib
import http.client
import http.cookiejar
import json
import os
import re
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

from tests.e2e.up_kit import PATIENCE_S, ROOT, Up, environment, eventually

NAME, PASSWORD = "founder", "correct horse battery staple"
ENDED = {"succeeded", "failed", "cancelled", "timed_out", "lost"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


def manage(home: Path, *arguments: str, **extra: str) -> str:
    """What a command prints; it must end well."""
    ended = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env=environment(home, **extra), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def set_up(home: Path, **extra: str) -> str:
    """First account and a token, by the commands for scripts."""
    manage(home, "setup", "--username", NAME, "--password-env", "FIRST", FIRST=PASSWORD, **extra)
    return manage(home, "create_token", "--username", NAME, "--name", "e2e", **extra).split()[-1]


class Api:
    """Calls below /api/v3; the answer is given whatever its status, 2xx is asserted by `ok`."""

    root = "/api/v3"

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token

    def call(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        """`headers` by names with underscores; a None-like empty Authorization is left out."""
        sent = {"Authorization": f"Bearer {self.token}", "Connection": "close"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if not sent["Authorization"]:
            del sent["Authorization"]
        content = raw
        if body is not None:
            content = json.dumps(body, ensure_ascii=False).encode()
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = self.connect()
        try:
            # Who is refused before all is sent finds the answer where it lies, as curl does.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, f"{self.root}{path}", content, sent)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        """One connection for one call."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = self.call(method, path, body, **headers)
        assert 200 <= answer.status < 300, f"{method} {path}: {answer.status} {answer.text[:2000]}"
        return answer.json if answer.content else None

    def make(self, **task: Any) -> dict[str, Any]:
        """A task of the default project."""
        task.setdefault("name", f"task {secrets.token_hex(4)}")
        return self.ok("POST", "/projects/default/tasks", task)

    def start(self, task: Mapping[str, Any], **body: Any) -> str:
        """Id of a new run."""
        path = f"/projects/default/tasks/{task['slug']}/runs"
        return self.ok("POST", path, body, Idempotency_Key=secrets.token_hex(8))["id"]

    def run(self, run_id: str) -> dict[str, Any]:
        return self.ok("GET", f"/runs/{run_id}")

    def events(self, run_id: str) -> list[dict[str, Any]]:
        return self.ok("GET", f"/runs/{run_id}/events?limit=500")["items"]

    def until(
        self, run_id: str, statuses: Iterable[str] = ENDED, seconds: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The run once it has one of the statuses."""
        wanted, seen = set(statuses), {}

        def reached() -> dict[str, Any] | None:
            seen.update(self.run(run_id))
            return seen if seen["status"] in wanted else None

        try:
            return eventually(reached, f"run {wanted}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{seen}") from None

    def log(self, run_id: str) -> bytes:
        """The whole log."""
        answer = self.call("GET", f"/runs/{run_id}/log?download=1")
        assert answer.status == 200, answer.text
        return answer.content


@dataclass
class Form:
    """A form as it stands on a page, with what a browser would send if nothing were touched."""

    action: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str, str]] = field(default_factory=list)
    id: str = ""

    def names(self) -> set[str]:
        return {name for name, _value in self.fields}


class Page(HTMLParser):
    """The forms of a page. A text box loses its first line break and sends CR LF, as HTML has it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.forms: list[Form] = []
        self._form: Form | None = None
        self._area: str | None = None
        self._text = ""
        self._select: str | None = None
        self._inert = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "template":
            self._inert += 1
        if self._inert:
            return
        if tag == "form":
            self._form = self._named(given.get("id", ""))
            self._form.action = given.get("action", "")
            return
        form = self._named(given["form"]) if "form" in given else self._form
        if form is None or "disabled" in given:
            return
        if tag == "input" and "name" in given:
            if given.get("type") not in ("radio", "checkbox") or "checked" in given:
                form.fields.append((given["name"], given.get("value", "")))
        elif tag == "textarea":
            self._area, self._text = given.get("name", ""), ""
        elif tag == "select":
            self._select = given.get("name", "")
        elif tag == "option" and self._select and "selected" in given:
            form.fields.append((self._select, given.get("value", "")))
        elif tag == "button" and given.get("type", "submit") == "submit":
            form.buttons.append((given.get("name", ""), given.get("value", ""), given.get("formaction", "")))

    def _named(self, id: str) -> Form:
        """The form of this id, which may stand behind what belongs to it."""
        known = next((form for form in self.forms if id and form.id == id), None)
        if known is None:
            known = Form(id=id)
            self.forms.append(known)
        return known

    def handle_endtag(self, tag: str) -> None:
        if tag == "template":
            self._inert -= 1
        elif tag == "form":
            self._form = None
        elif tag == "select":
            self._select = None
        elif tag == "textarea" and self._area is not None:
            if self._form is not None and not self._inert:
                text = re.sub(r"\r\n?|\n", "\r\n", self._text.removeprefix("\n"))
                self._form.fields.append((self._area, text))
            self._area = None

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self._text += data


class Browser:
    """Cookies, pages and forms; redirects are followed."""

    def __init__(self, port: int) -> None:
        self._home = f"http://127.0.0.1:{port}"
        self.jar = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        self.address = ""

    def get(self, path: str) -> Answer:
        return self._open(urllib.request.Request(urljoin(self._home, path)))

    def submit(
        self,
        path: str,
        changes: Mapping[str, str] | None = None,
        *,
        having: str = "",
        action: str = "",
        button: tuple[str, str] | None = None,
        pairs: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        """Fills in and sends the form of a page that has a field, or one that goes to an address.

        `action` is sent to when a button of some form goes there; `pairs` are rows of environment values.
        """
        page = Page(self.get(path).text)
        if action:
            form = next(f for f in page.forms if f.action == action or any(b[2] == action for b in f.buttons))
        else:
            form = next(f for f in page.forms if having in f.names())
        wanted = dict(changes or {})
        assert wanted.keys() <= form.names() | {"kind", "note"}, wanted.keys() - form.names()
        sent = [(name, wanted.pop(name, value)) for name, value in form.fields]
        sent += list(wanted.items())
        for name, value in pairs:
            sent += [("env_name", name), ("env_value", value.replace("\n", "\r\n"))]
        if button:
            assert button in {(b[0], b[1]) for b in form.buttons}, form.buttons
            sent.append(button)
        target = urljoin(self.address, action or form.action or self.address)
        headers = {"Referer": self.address, "Origin": self._home}
        data = urlencode(sent, errors="surrogatepass").encode()
        return self._open(urllib.request.Request(target, data, headers))

    def sign_in(self) -> Browser:
        self.submit("/panel/login/", {"username": NAME, "password": PASSWORD}, having="password")
        assert self.address.endswith("/panel/"), self.address
        return self

    def _open(self, request: urllib.request.Request) -> Answer:
        try:
            with self._opener.open(request, timeout=60) as answer:
                self.address = answer.url
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            self.address = error.url or ""
            return Answer(error.code, error.headers, error.read())


class ByApi:
    """The main job as a program does it."""

    name = "api"

    def __init__(self, api: Api, browser: Browser) -> None:
        self.api = api

    def make(self, **task: Any) -> dict[str, Any]:
        return self.api.make(**task)

    def start(self, task: Mapping[str, Any]) -> str:
        return self.api.start(task)

    def stop(self, run_id: str) -> None:
        assert self.api.call("POST", f"/runs/{run_id}/stop", {"note": "enough"}).status == 202

    def log(self, run_id: str) -> bytes:
        return self.api.log(run_id)


class ByPanel:
    """The main job as a person does it."""

    name = "panel"

    def __init__(self, api: Api, browser: Browser) -> None:
        self.api = api
        self.browser = browser

    def make(self, **task: Any) -> dict[str, Any]:
        slug = f"panel-{secrets.token_hex(4)}"
        values = {"name": task.pop("name", slug), "slug": slug}
        env = task.pop("env", {})
        if "script" in task:
            script = task.pop("script")
            values |= {"kind": "script", "language": script["language"], "source": script["source"]}
            values["args"] = "\n".join(script.get("args", []))
        elif "command" in task:
            values |= {"kind": "command", "argv": "\n".join(task.pop("command"))}
        else:
            values |= {"kind": "shell", "shell": task.pop("shell")}
        if "kill_grace_ms" in task:
            values["grace"] = str(task.pop("kill_grace_ms") / 1000)
        if "log_quota_bytes" in task:
            values["quota"] = str(task.pop("log_quota_bytes") / 1_048_576)
        assert not task, f"the panel's form is not told of {task}"
        sent = {name: value.replace("\n", "\r\n") for name, value in values.items()}
        answer = self.browser.submit(
            "/panel/p/default/tasks/new/", sent, having="slug", button=("do", "save"), pairs=env.items()
        )
        assert self.browser.address.endswith(f"/task/{slug}/"), answer.text[-6000:]
        return self.api.ok("GET", f"/projects/default/tasks/{slug}")

    def start(self, task: Mapping[str, Any]) -> str:
        page = f"/panel/p/default/task/{task['slug']}/"
        answer = self.browser.submit(page, action=f"{page}run/")
        found = re.search(r"/panel/runs/([0-9a-f-]{36})/", self.browser.address)
        found = found or re.search(r"Started: .*?/panel/runs/([0-9a-f-]{36})/", answer.text, re.DOTALL)
        assert found, answer.text[-6000:]
        return found[1]

    def stop(self, run_id: str) -> None:
        answer = self.browser.submit(f"/panel/runs/{run_id}/stop/", {"note": "enough"}, having="note")
        assert answer.status == 200 and "Stop requested." in answer.text, answer.text[-4000:]

    def log(self, run_id: str) -> bytes:
        page = self.browser.get(f"/panel/runs/{run_id}/")
        assert page.status == 200
        return self.browser.get(f"/panel/runs/{run_id}/log/").content


@dataclass
class House:
    """One running panel with its first account; `again` starts the same home after its death."""

    up: Up
    api: Api
    browser: Browser
    extra: dict[str, str]

    @classmethod
    def build(cls, home: Path, *arguments: str, **extra: str) -> House:
        from tests.e2e.furnished import furnish

        token = furnish(home, owned=True, **{name: extra[name] for name in extra if name == "DATABASE_URL"})
        up = Up(home, *arguments, **extra)
        try:
            up.wait_ready()
            return cls(up, Api(up.port, token), Browser(up.port).sign_in(), extra)
        except BaseException:
            up.stop()
            raise

    def doors(self) -> list[ByApi | ByPanel]:
        return [ByApi(self.api, self.browser), ByPanel(self.api, self.browser)]

    def again(self, *arguments: str) -> None:
        self.up = Up(self.up.home, *arguments, port=self.up.port, **self.extra).wait_ready()


def processes_with(marker: str) -> list[int]:
    """Pids of all living processes that carry a text in their environment or arguments."""
    found, wanted = [], marker.encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            told = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if wanted in told and state not in "ZX":
            found.append(int(folder.name))
    return found
