"""People come in through an OpenID provider of somebody else's making, in a browser, under `/ql/` behind nginx."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.access.provider import CLIENT, Hostile, reply, running
from tests.e2e import nginx
from tests.e2e.chrome import axe_faults
from tests.e2e.nginx import HOST, Nginx
from tests.e2e.person import manage
from tests.e2e.up_kit import Up, database, eventually, free_port
from tests.e2e.window import Window

mock = pytest.importorskip("oidc_provider_mock")
pytestmark = [pytest.mark.one_engine, pytest.mark.skipif(nginx.PROGRAM is None, reason="no nginx here")]
SECRET = "a client secret that nobody sees"
DEEP = "/panel/p/default/tasks/?show=all"


@dataclass
class Place:
    """A panel whose people come from `issuer`."""

    up: Up
    issuer: str
    hostile: Hostile
    extra: dict[str, str]

    def person(self, sub: str, **claims: Any) -> None:
        """What the provider says of somebody from now on."""
        body = json.dumps(claims).encode()
        headers = {"Content-Type": "application/json"}
        sent = urllib.request.Request(f"{self.issuer}/users/{sub}", body, headers, method="PUT")
        with urllib.request.urlopen(sent, timeout=10) as answer:
            assert answer.status == 204


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("sso")
    inside, outside = free_port(), free_port()
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n")
    front = Nginx(folder, inside, outside, free_port())
    try:
        with (
            mock.run_server_in_thread(require_nonce=True) as server,
            running() as hostile,
            database() as extra,
        ):
            issuer = f"http://localhost:{server.server_port}"
            extra |= {
                "QINGLONG_BASE_URL": f"https://{HOST}:{outside}/ql",
                "QINGLONG_TRUSTED_PROXIES": HOST,
                "OIDC_ISSUER": issuer,
                "OIDC_CLIENT_ID": "qinglong",
                "OIDC_CLIENT_SECRET_FILE": str(secret),
                "OIDC_NAME": "Acme",
                "OIDC_PROVISION": "1",
                "OIDC_PROVIDERS": "hostile",
                "OIDC_HOSTILE_ISSUER": hostile.issuer,
                "OIDC_HOSTILE_CLIENT_ID": CLIENT,
                "OIDC_HOSTILE_CLIENT_SECRET": SECRET,
                "OIDC_HOSTILE_NAME": "Hostile",
                "OIDC_HOSTILE_PROVISION": "1",
                "OIDC_ROLE_MAP": json.dumps({"ops": {"default": "operator"}}),
            }
            up = Up(folder / "home", port=inside, **extra)
            try:
                yield Place(up.wait_ready(), issuer, hostile, extra)
            finally:
                up.stop()
    finally:
        front.stop()


class Traveller(Window):
    """A window that may visit the provider; what the provider's pages want from elsewhere is left out."""

    issuer = ""

    def _stays_here(self, request: Any) -> None:
        if not (request.frame.url.startswith(self.issuer) or request.url.startswith(f"{self.issuer}/")):
            super()._stays_here(request)

    def at_provider(self, page: Any, sub: str) -> None:
        page.wait_for_url(f"{self.issuer}/oauth2/authorize?**")
        page.fill("input[name=sub]", sub)
        page.get_by_role("button", name="Authorize", exact=True).click()


def open_window(chromium: Any, place: Place, **options: Any) -> Traveller:
    window = Traveller(
        chromium, place.up, **{"language": "en", "width": 1280, "ignore_https_errors": True, **options}
    )
    window.issuer = place.issuer
    own = re.compile(rf"^(?!{re.escape(place.up.address)}|{re.escape(place.issuer)}/)https?://")
    window.context.route(own, lambda route: route.fulfill(status=200, body="", content_type="text/css"))
    return window


@pytest.fixture(scope="module")
def owned(place: Place, chromium: Any) -> Place:
    """With its first account, which keeps a password."""
    root = open_window(chromium, place)
    root.set_up(place.up)
    root.close()
    return place


def test_a_day_of_somebody_from_the_provider(owned: Place, chromium: Any) -> None:
    owned.person("carol|1", preferred_username="carol", groups=["ops", "staff"], email="carol@example.org")
    carol = open_window(chromium, owned)
    page = carol.page

    # In, and to the page that was asked for.
    carol.go(DEEP)
    page.wait_for_url("**/panel/login/?next=*")
    page.get_by_role("link", name="Sign in with Acme").click()
    carol.at_provider(page, "carol|1")
    page.wait_for_url(f"{carol.base}{DEEP}")
    session = next(one for one in carol.context.cookies() if one["name"] == "ql_session")
    assert (session["path"], session["secure"], session["httpOnly"], session["sameSite"]) == (
        "/ql/", True, True, "Lax",
    )  # fmt: skip
    carol.make("By Carol", "echo hello from carol")
    page.locator(".ql-run-head .ql-chip[data-state=succeeded]").wait_for(timeout=20_000)

    # Out, here and there.
    page.get_by_role("complementary").locator("summary", has_text="carol").click()
    page.locator("details[open]").get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{owned.issuer}/oauth2/end_session?**")
    page.get_by_role("button", name="End session").click()
    page.wait_for_url(f"{carol.base}/panel/login/")
    carol.go("/panel/")
    page.wait_for_url("**/panel/login/?next=*")

    # Two tabs at once, the second first.
    tabs = [carol.context.new_page() for _ in range(2)]
    for tab, target in zip(tabs, ("/panel/tokens/", "/panel/p/default/runs/"), strict=True):
        tab.goto(f"{carol.base}{target}")
        tab.get_by_role("link", name="Sign in with Acme").click()
        tab.wait_for_url(f"{owned.issuer}/**")
    carol.at_provider(tabs[1], "carol|1")
    tabs[1].wait_for_url(f"{carol.base}/panel/p/default/runs/")
    carol.at_provider(tabs[0], "carol|1")
    tabs[0].wait_for_url(f"{carol.base}/panel/tokens/")
    tabs[1].reload()
    assert tabs[1].url == f"{carol.base}/panel/p/default/runs/", "both tabs are one session"

    # Groups and address change: the same person, without the role.
    owned.person("carol|1", preferred_username="other", groups=["staff"], email="other@example.org")
    carol.go("/oidc/login/?next=/ql/panel/projects/")
    carol.at_provider(page, "carol|1")
    page.wait_for_url(f"{carol.base}/panel/projects/")
    assert page.locator("summary", has_text="carol").count() and "other" not in page.content()
    answer = page.request.get(f"{carol.base}/api/v3/projects/default")
    assert answer.status == 404
    carol.close()


def test_a_person_says_no_and_a_way_back_is_not_for_everybody(owned: Place, chromium: Any) -> None:
    dave = open_window(chromium, owned, width=390, language="zh-hans")
    page = dave.page
    dave.go("/panel/login/")
    page.get_by_role("link", name="通过 Acme 登录").click()
    page.wait_for_url(f"{owned.issuer}/oauth2/authorize?**")
    page.get_by_role("button", name="Deny").click()
    page.wait_for_url("**/ql/oidc/callback/?**")
    assert page.locator("code", has_text="oidc_cancelled").count() == 1
    page.get_by_role("link", name="重试").click()
    page.wait_for_url(f"{owned.issuer}/oauth2/authorize?**")

    # Another browser gets the link of this sign-in: it is not theirs. Its own browser gets in with it.
    sent = page.request.post(page.url, form={"sub": "dave"}, max_redirects=0)
    back = sent.headers["location"]
    thief = open_window(chromium, owned)
    answer = thief.page.goto(back)
    assert answer.status == 400 and thief.page.locator("code", has_text="oidc_state_unknown").count() == 1
    assert not [one for one in thief.context.cookies() if one["name"] == "ql_session"]
    thief.context.close()
    page.goto(back)
    page.wait_for_url(f"{dave.base}/panel/")
    dave.context.close()


def test_an_account_adds_the_provider_and_the_doctor_knows(owned: Place, chromium: Any) -> None:
    for groups in (["ops"], ["staff"]):
        owned.person("erin|1", preferred_username="erin", groups=groups)
        erin = open_window(chromium, owned)
        erin.go("/oidc/login/?next=/ql/panel/projects/")
        erin.at_provider(erin.page, "erin|1")
        erin.page.wait_for_url(f"{erin.base}/panel/projects/")
        erin.close()
    owned.person("ann-there", preferred_username="ann", groups=[])
    ann = open_window(chromium, owned)
    ann.sign_in()
    page = ann.page
    ann.go("/panel/sign-in-doctor/")
    assert page.get_by_text(f"{ann.base}/oidc/callback/", exact=True).count() == 1
    page.locator("button[name=provider][value=main]").click()
    page.locator(".ql-findings li").first.wait_for()
    assert page.locator(".ql-findings li[data-level=failure]").count() == 0
    assert page.get_by_text("taken away").count() and page.get_by_text("erin", exact=True).count() >= 2
    ann.go("/panel/sign-in-methods/")
    page.locator("main").get_by_role("button", name="Acme").click()
    ann.at_provider(page, "ann-there")
    page.wait_for_url(f"{ann.base}/panel/sign-in-methods/")
    page.get_by_role("button", name="Take Acme away").wait_for()
    ann.go("/panel/sign-in-doctor/")
    assert page.get_by_text("added to an account").count() == 1
    assert SECRET not in page.content()
    ann.close()
    told = manage(owned.up.home, "login_doctor", **owned.extra)
    assert "linked  ann" in told and f"{ann.base}/oidc/callback/" in told and SECRET not in told
    files = [
        path for path in Path(owned.up.home).rglob("*") if path.is_file() and path.stat().st_size < 50_000_000
    ]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET not in owned.up.output


def test_a_provider_that_is_wrong_about_everything(owned: Place, chromium: Any) -> None:
    eve = open_window(chromium, owned)
    page, hostile = eve.page, owned.hostile

    def attempt() -> tuple[int, str]:
        """Status of where it ends, and the code on the page."""
        answer = eve.go("/oidc/login/hostile/?next=/ql/panel/tokens/")
        code = page.locator("main code")
        return answer.status, code.first.inner_text() if code.count() else ""

    for alter, code in (
        (lambda claims: claims.update(nonce="another"), "oidc_refused"),
        (lambda claims: claims.update(aud="another"), "oidc_refused"),
        (lambda claims: claims.update(iss="https://elsewhere.example"), "oidc_refused"),
        (lambda claims: claims.update(iat=claims["iat"] + 600), "oidc_clocks_differ"),
        (lambda claims: claims.update(exp=claims["iat"] - 600), "oidc_clocks_differ"),
    ):
        hostile.alter = alter  # type: ignore[assignment]
        assert attempt() == (403, code)
        assert not [one for one in eve.context.cookies() if one["name"] == "ql_session"]
    hostile.alter = lambda claims: None
    hostile.answers["/token"] = lambda call: reply(call, {}, 503)
    assert attempt() == (503, "oidc_provider_unreachable")
    hostile.answers.clear()
    assert attempt()[0] == 200 and page.url == f"{eve.base}/panel/tokens/"

    hostile.rotate()
    eventually(lambda: attempt()[0] == 200, "the new keys are fetched")
    token = hostile.signed(hostile.logout_token(sub=hostile.person), "second")
    form = {"logout_token": token}
    address = f"{eve.base}/oidc/back-channel-logout/hostile/"
    assert page.request.post(address, form=form).status == 200
    eve.go("/panel/tokens/")
    page.wait_for_url("**/panel/login/?next=*")
    assert page.request.post(address, form=form).status == 400, "once"
    eve.context.close()


def test_its_pages_are_for_every_eye_and_thumb(owned: Place, chromium: Any) -> None:
    looks = {"language": "zh-hans", "color_scheme": "dark", "reduced_motion": "reduce"}
    ann = open_window(chromium, owned, width=390, **looks)
    page, found = ann.page, {}

    def look(path: str) -> None:
        ann.go(path)
        for details in page.locator("td details").all():
            details.locator("summary").click()
        if faults := axe_faults(page):
            found[path] = faults
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path

    for path in ("/panel/login/", "/oidc/callback/?code=x&state=y", "/oidc/login/nobody/"):
        look(path)
    ann.sign_in()
    for path in ("/panel/sign-in-methods/", "/panel/sign-in-doctor/"):
        look(path)
    assert not found, found
    assert not [one for one in ann.complaints if "status of 4" not in one]
    ann.context.close()
