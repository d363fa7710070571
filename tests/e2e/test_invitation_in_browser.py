"""A link for somebody new in Chromium, under the strict policy: made, copied, opened, used; with and without script."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.e2e import chrome
from tests.e2e.up_kit import Up
from tests.e2e.window import PASSWORD, Window

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_engine,
    pytest.mark.skipif(chrome.CHROMIUM is None, reason="no browser here"),
]
LINK = re.compile(r"http://[^/]+(/invitation/#(ql3i_[A-Za-z0-9_-]{43}))")


def make(window: Window, name: str) -> tuple[str, str]:
    """The path of a new link with its fragment, and the secret alone; copied as a person would."""
    window.go("/panel/people/invitations/")
    window.page.fill("#f-username", name)
    window.page.select_option("#f-role", "operator")
    window.page.click("button:has-text('Make link')")
    found = LINK.search(window.page.inner_text("#secret"))
    assert found is not None
    window.page.click("[data-copy]")
    assert window.page.evaluate("navigator.clipboard.readText()").endswith(found[1])
    return found[1], found[2]


def test_a_link_is_made_opened_and_used_up(settled: Up, chromium: Any) -> None:
    ann = Window(
        chromium, settled, language="en", width=1280, permissions=["clipboard-read", "clipboard-write"]
    )
    ann.sign_in()
    (first, secret), (second, other) = make(ann, "nina"), make(ann, "otto")
    nina = Window(chromium, settled, language="en", width=390)
    asked: list[str] = []
    nina.page.on(
        "request", lambda request: asked.append(request.url + (request.headers.get("referer") or ""))
    )
    nina.go(first)
    nina.page.wait_for_selector("#password")
    assert nina.page.input_value("#username") == "nina" and "#" not in nina.page.url
    assert "Operator" in nina.page.inner_text("main")
    # Another language leads back to the same form.
    nina.page.click("button[value='zh-hans']")
    nina.page.wait_for_selector("html[lang='zh-hans'] #password")
    nina.page.click("button[value='en']")
    nina.page.wait_for_selector("html[lang='en'] #password")
    nina.page.fill("#password", PASSWORD)
    nina.page.click("main form:has(#password) button.ql-primary")
    nina.page.wait_for_url("**/panel/")
    assert not [url for url in asked if secret in url], "the link is in no address that was sent"
    # Whoever is in already does not become somebody else; after signing out the link goes on.
    nina.go(second)
    nina.page.wait_for_selector("text=You are signed in as nina")
    nina.page.click("main button:has-text('Sign out')")
    nina.page.wait_for_selector("main button:has-text('Sign in')")
    nina.close()
    late = Window(chromium, settled, language="en", width=1280)
    late.go(first)
    late.page.wait_for_selector("code:has-text('invitation_invalid')")
    late.context.close()
    plain = Window(chromium, settled, language="en", width=1280, scripts=False)
    plain.go(second)
    plain.page.fill("#secret", f"{settled.address}{second}")
    plain.page.click("main button.ql-primary")
    assert plain.page.input_value("#username") == "otto"
    plain.page.fill("#password", PASSWORD)
    plain.page.click("main form:has(#password) button.ql-primary")
    plain.page.wait_for_url("**/panel/")
    plain.close()
    ann.go("/panel/people/invitations/")
    assert "No link is open." in ann.page.inner_text("main")
    ann.close()
    assert secret not in settled.output and other not in settled.output
