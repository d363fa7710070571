"""The API page works in a real browser under the strict content policy."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer

from tests.people import member, signed_in

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.e2e
@pytest.mark.skipif(CHROMIUM is None, reason="no browser here")
@pytest.mark.one_engine
@pytest.mark.django_db(transaction=True)
def test_operations_are_listed_without_a_violation(seeded: None, live_server: LiveServer) -> None:
    from playwright.sync_api import sync_playwright

    cookie = signed_in(member("owner")).cookies["ql_session"].value
    said: list[str] = []
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            context = browser.new_context()
            context.add_cookies([{"name": "ql_session", "value": cookie, "url": live_server.url}])
            page = context.new_page()
            page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(f"{live_server.url}/api/v3/docs")
            page.wait_for_selector(".opblock", timeout=20_000)
            shown: Any = page.locator(".opblock").count()
            browser.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    assert shown > 10
    assert said == []
