"""An app for codes, and passkeys in Chromium with an authenticator that it plays itself, under the strict policy."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django_otp.oath import hotp

from tests.e2e import chrome
from tests.e2e.up_kit import Up, database, free_port
from tests.e2e.window import PASSWORD, Window

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_engine,
    pytest.mark.skipif(chrome.CHROMIUM is None, reason="no browser here"),
]
SECURITY = "/panel/security/"


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """At a name, for passkeys know no addresses."""
    port = free_port()
    with database() as extra:
        up = Up(
            tmp_path_factory.mktemp("factors") / "home",
            port=port,
            **extra,
            QINGLONG_BASE_URL=f"http://localhost:{port}",
        )
        try:
            yield up.wait_ready()
        finally:
            up.stop()


def authenticator(window: Window, **options: Any) -> None:
    """A device that agrees to everything."""
    session = window.context.new_cdp_session(window.page)
    session.send("WebAuthn.enable")
    session.send(
        "WebAuthn.addVirtualAuthenticator",
        {
            "options": {
                "protocol": "ctap2", "transport": "internal", "hasResidentKey": True,
                "hasUserVerification": True, "isUserVerified": True, "automaticPresenceSimulation": True,
                **options,
            }
        },
    )  # fmt: skip


def sign_out(window: Window) -> None:
    window.page.click(".ql-person summary")
    window.page.click(".ql-person form[action$='/logout/'] button")
    window.page.wait_for_url("**/panel/login/**")


def test_codes_and_passkeys_open_the_door(panel: Up) -> None:
    with chrome.browser() as chromium:
        window = Window(chromium, panel, language="en", width=1280)
        page = window.page
        window.set_up(panel)
        authenticator(window)

        window.go(SECURITY)
        page.click("text=Set up")
        page.wait_for_url("**/security/app/")
        secret = page.inner_text("#secret").replace(" ", "")
        assert page.locator(".ql-qr svg path").count() >= 1
        page.fill("#code", f"{hotp(base64.b32decode(secret), int(time.time()) // 30 - 1):06d}")
        page.click("text=Use it from now on")
        recovery = page.inner_text("#codes").split()
        assert len(recovery) == 10
        page.click("text=I stored them")

        page.fill("#f-name", "Laptop")
        page.click("text=Add passkey")
        page.wait_for_selector("text=Passkey that stays in one device")

        sign_out(window)
        page.click("text=Sign in with a passkey")
        page.wait_for_url("**/panel/")
        window.go(SECURITY)
        assert "passkey" in page.inner_text("tr:has-text('this one')")
        assert "proof bound to a device" in page.inner_text("tr:has-text('this one')")

        sign_out(window)
        page.fill("#username", window.who[0])
        page.fill("#password", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url("**/login/second/**")
        page.fill("#code", "000000")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=alert] code:text('sign_in_refused')")
        page.fill("#code", recovery[0])
        page.keyboard.press("Enter")
        page.wait_for_url("**/panel/")

        window.go(SECURITY)
        assert re.search(r"\b9 are left", page.inner_text("main"))
        page.click("[aria-label='Remove Laptop']")
        page.wait_for_selector("text=sessions that came by it have ended")
        assert not [one for one in window.complaints if "401" not in one], window.complaints
        window.complaints.clear()
        window.close()
