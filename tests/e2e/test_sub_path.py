"""Everything under `/ql/` behind nginx with TLS: a person, a program, and what proxies may say (lessons D21)."""

from __future__ import annotations

import http.client
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.e2e import nginx
from tests.e2e.nginx import HOST, Nginx
from tests.e2e.person import Api, manage
from tests.e2e.up_kit import Up, database, eventually, free_port
from tests.e2e.window import NAME, PASSWORD, Window

pytestmark = [pytest.mark.one_engine, pytest.mark.skipif(nginx.PROGRAM is None, reason="no nginx here")]


@dataclass
class Site:
    """A panel that is only known by its address behind nginx."""

    up: Up
    nginx: Nginx
    extra: dict[str, str]

    @property
    def base(self) -> str:
        return self.up.address


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    inside, outside, stripping = free_port(), free_port(), free_port()
    front = Nginx(folder, inside, outside, stripping)
    try:
        with database() as extra:
            # With a slash at the end, as people write it.
            extra |= {
                "QINGLONG_BASE_URL": f"https://{HOST}:{outside}/ql/",
                "QINGLONG_TRUSTED_PROXIES": HOST,
            }
            up = Up(folder / "home", port=inside, **extra)
            up.address = up.address.rstrip("/")
            try:
                yield Site(up.wait_ready(), front, extra)
            finally:
                up.stop()
    finally:
        front.stop()


@pytest.fixture(scope="module")
def owned(site: Site, chromium: Any) -> Site:
    """With its first account, made through the printed link."""
    ann = open_window(chromium, site)
    link = eventually(lambda: re.search(r"https://\S+/setup\?token=\S+", site.up.output), "the set-up link")[
        0
    ]
    assert link.startswith(f"{site.base}/setup?")
    assert f"QingLong is at {site.base}/\n" in site.up.output
    ann.set_up(site.up)
    assert ann.page.url == f"{site.base}/panel/"
    ann.close()
    return site


@pytest.fixture(scope="module")
def api(owned: Site) -> Through:
    token = manage(owned.up.home, "create_token", "--username", NAME, "--name", "e2e", **owned.extra).split()[
        -1
    ]
    return Through(owned, token)


class Through(Api):
    """A program that knows the outer address only; `stripping` goes to the server that leaves `/ql` out."""

    root = "/ql/api/v3"

    def __init__(self, site: Site, token: str, *, stripping: bool = False, source: str = "127.0.0.1") -> None:
        super().__init__(site.nginx.stripping if stripping else site.nginx.port, token)
        self.site = site
        self.source = source

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(
            HOST, self.port, timeout=60, context=self.site.nginx.context(), source_address=(self.source, 0)
        )

    def outside(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any, bytes]:
        """Any address of the site: status, headers, body; redirects are shown, not followed."""
        connection = self.connect()
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


class Inside(Through):
    """As a proxy asks that says nothing of whom it asks for."""

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self.site.up.port, timeout=60)


def open_window(chromium: Any, site: Site) -> Window:
    ann = Window(chromium, site.up, language="en", width=1280, ignore_https_errors=True)

    def notes(answer: Any) -> None:
        if answer.status >= 400:
            ann.complaints.append(f"{answer.status} {answer.url}")

    ann.page.on("response", notes)
    return ann


def test_a_persons_day(owned: Site, chromium: Any) -> None:
    ann = open_window(chromium, owned)
    page = ann.page
    ann.go("/panel/p/default/tasks/")
    page.wait_for_url(f"{owned.base}/panel/login/?next=*")
    assert "next=%2Fql%2Fpanel%2F" in page.url
    ann.sign_in()
    session = next(one for one in ann.context.cookies() if one["name"] == "ql_session")
    assert (session["path"], session["secure"], session["httpOnly"]) == ("/ql/", True, True)
    assert {one["path"] for one in ann.context.cookies()} == {"/ql/"}

    a_task_is_made_and_watched(ann)
    the_dashboard_lives(ann)
    a_webhook_is_made_and_called(ann)
    the_palette_goes_there(ann)

    ann.go("/api/v3/docs")
    page.locator(".opblock").first.wait_for(timeout=20_000)
    assert "/ql" in page.locator(".servers").first.inner_text()

    ann.go("/panel/")
    me = page.locator("summary:visible", has_text=NAME)
    for name in ("Dark", "中文", "English"):
        me.click()
        with page.expect_navigation(url=f"{owned.base}/panel/"):
            page.locator("details[open]").get_by_role("button", name=name).click()
    me.click()
    page.locator("details[open]").get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{owned.base}/panel/login/")
    ann.close()
    outside = [address for _status, address in owned.nginx.asked() if not address.startswith("/ql/")]
    assert not outside and not owned.nginx.errors()


def a_task_is_made_and_watched(ann: Window) -> None:
    """The form, the run, its log as it grows and as a file."""
    page = ann.page
    ann.make("Watched", "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo tick $i; sleep 0.1; done")
    lines = page.locator(".ql-line")
    page.locator(".ql-line", has_text="tick 3").first.wait_for(timeout=20_000)
    assert lines.count() < 40, "it is shown while it is written"
    page.locator(".ql-run-head .ql-chip[data-state=succeeded]").wait_for(timeout=20_000)
    eventually(lambda: lines.count() == 40, "all lines")
    with page.expect_download() as started:
        page.locator("#log .ql-menu summary").click()
        page.locator("#log a[download]").click()
    assert Path(started.value.path()).read_text().splitlines()[-1] == "tick 40"


def the_dashboard_lives(ann: Window) -> None:
    """A fragment is asked for and answered below the prefix."""
    with ann.page.expect_response(
        lambda answer: answer.url == f"{ann.base}/panel/" and "x-part" in answer.request.headers,
        timeout=20_000,
    ) as part:
        ann.go("/panel/")
    assert part.value.status in (200, 304)


def a_webhook_is_made_and_called(ann: Window) -> None:
    """A rule is explained while it is typed; the address of a webhook is the outer one and works."""
    page = ann.page

    ann.go("/panel/p/default/task/watched/triggers/")
    page.locator(".ql-card-foot [data-builder-open]").click()
    dialog = page.locator("dialog[open]")
    dialog.locator("[data-preset=daily]").click()
    dialog.locator(".ql-next-ten tbody tr").first.wait_for()
    dialog.locator("[name=t_kind][value=webhook]").check()
    dialog.locator("button[value=save]").click()
    address = dialog.locator("#hook").inner_text()
    assert address.startswith(f"{ann.base}/hooks/")
    assert page.request.post(address, data={}).status == 201
    dialog.get_by_role("link").last.click()
    page.locator(".ql-triggers tr").wait_for()


def the_palette_goes_there(ann: Window) -> None:
    page = ann.page
    page.keyboard.press("Control+k")
    page.locator("#palette").wait_for(state="visible")
    page.keyboard.type("watched")
    hit = page.locator("#palette").get_by_role("link", name="Watched").first
    hit.wait_for()
    assert (hit.get_attribute("href") or "").startswith("/ql/panel/")
    hit.click()
    page.wait_for_url(f"{ann.base}/panel/**/watched/")


@pytest.mark.parametrize("stripping", [False, True], ids=["passed on", "left out"])
def test_a_programs_day(owned: Site, api: Through, stripping: bool) -> None:
    program = Through(owned, api.token, stripping=stripping)
    name = f"by program {secrets.token_hex(3)}"
    task = program.make(name=name, shell="seq 1 200000")
    big = {"text": "x" * (64 * 1024 - 100)}
    run = program.start(task, input=big)
    assert program.until(run)["status"] == "succeeded"
    assert program.log(run) == "".join(f"{n}\n" for n in range(1, 200_001)).encode()
    part = program.call("GET", f"/runs/{run}/log?offset=0&limit=262144")
    assert len(part.content) == 262_144 and part.headers["X-Log-Complete"] == "true"

    first = program.ok("GET", "/projects/default/runs?limit=1")
    if first["next_cursor"]:
        assert program.ok("GET", f"/projects/default/runs?limit=1&cursor={first['next_cursor']}")["items"]
    made = program.ok("POST", f"/projects/default/tasks/{task['slug']}/triggers", {"kind": "webhook"})
    assert made["url"].startswith(f"{owned.base}/hooks/")
    assert program.outside("POST", urlsplit(made["url"]).path, b"{}")[0] == 201

    refused = program.call(
        "POST", f"/projects/default/tasks/{task['slug']}/runs", {"input": {"x": "y" * 5_000_000}}
    )
    assert refused.status == 413 and refused.json["code"], "the panel judges, not the proxy"
    assert program.call("GET", "/nothing").json["code"] == "not_found"
    assert program.ok("GET", "/schema")["servers"] == [{"url": "/ql"}]


@pytest.mark.parametrize("stripping", [False, True], ids=["passed on", "left out"])
def test_redirects_links_and_health(owned: Site, api: Through, stripping: bool) -> None:
    program = Through(owned, "", stripping=stripping)
    for path, target in (
        ("/ql", "/ql/"),
        ("/ql/", "/ql/panel/"),
        ("/ql/panel", "/ql/panel/"),
        ("/ql/panel/", "/ql/panel/login/?next=/ql/panel/"),
    ):
        status, headers, _body = program.outside("GET", path)
        assert status in (301, 302) and headers["Location"].replace("%2F", "/") == target
    assert program.outside("GET", "/ql/livez")[0] == 200
    assert program.outside("GET", "/ql/readyz")[0] == 200
    status, headers, body = program.outside("GET", "/ql/panel/login/")
    assert status == 200 and "Path=/ql/" in headers["Set-Cookie"] and "Secure" in headers["Set-Cookie"]
    assert headers["Strict-Transport-Security"] == "max-age=2592000"
    addresses = set(re.findall(r'(?:href|src|action)="([^"#]+)', body.decode()))
    assert addresses and all(one.startswith("/ql/") for one in addresses), addresses
    files = {one for one in addresses if one.startswith("/ql/static/")}
    assert files and {program.outside("GET", one)[0] for one in files} == {200}
    assert owned.up.status("/livez") == 200, "a health check on this machine needs no prefix"


def sign_in(caller: Through, password: str = PASSWORD, **headers: str) -> int:
    """Sends the sign-in form as a browser at the base URL would; the status."""
    _status, given, body = caller.outside("GET", "/ql/panel/login/")
    token = re.search(rb'csrfmiddlewaretoken" value="([^"]+)', body)
    assert token
    fields = {"csrfmiddlewaretoken": token[1].decode(), "username": NAME, "password": password}
    origin = caller.site.base.removesuffix("/ql")
    sent = {
        "Cookie": str(given["Set-Cookie"]).split(";")[0],
        "Content_Type": "application/x-www-form-urlencoded",
        "Origin": origin,
        "Referer": f"{origin}/ql/panel/login/",
    }
    return caller.outside("POST", "/ql/panel/login/", urlencode(fields).encode(), **sent | headers)[0]


def test_who_guesses_is_known_by_the_real_address_and_nobody_hides(owned: Site) -> None:
    guesser, other = (Through(owned, "", source=source) for source in ("127.0.0.2", "127.0.0.3"))
    wrong = [sign_in(guesser, "wrong", X_Forwarded_For=f"198.51.100.{n}") for n in range(6)]
    assert wrong[-1] == 429 and 429 not in wrong[:5] and 302 not in wrong
    assert sign_in(guesser) == 429
    assert sign_in(other) == 302


def test_forms_come_from_the_base_url_or_the_host_that_was_asked(owned: Site) -> None:
    straight, stripping = Through(owned, ""), Through(owned, "", stripping=True)
    assert sign_in(straight, Origin="https://evil.example") == 403
    assert sign_in(stripping) == 302, "the base URL is trusted at every host"
    asked = f"https://{HOST}:{stripping.port}"
    assert sign_in(stripping, Origin=asked, Referer=f"{asked}/ql/panel/login/") == 302
    assert sign_in(straight, Origin=asked, Referer=f"{asked}/ql/panel/login/") == 403
    assert sign_in(Inside(owned, "")) == 302, "a proxy may tell nothing at all"
