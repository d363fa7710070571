"""A live page whose server went away says so, and stops saying so when it is back."""

from __future__ import annotations

import os
import shutil

import pytest
from pytest_django.live_server_helper import LiveServer

from tests.panel.kit import a_task
from tests.people import member, signed_in

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.e2e
@pytest.mark.skipif(CHROMIUM is None, reason="no browser here")
@pytest.mark.one_engine
@pytest.mark.django_db(transaction=True)
def test_a_page_that_cannot_ask_says_that_it_may_be_old(seeded: None, live_server: LiveServer) -> None:
    from playwright.sync_api import sync_playwright

    owner = member("owner")
    task = a_task(owner)
    cookie = signed_in(owner).cookies["ql_session"].value
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            context = browser.new_context()
            context.add_cookies([{"name": "ql_session", "value": cookie, "url": live_server.url}])
            page = context.new_page()
            page.goto(f"{live_server.url}/panel/p/default/task/{task.slug}/")
            assert page.locator("#away").is_hidden()
            page.route("**/*", lambda route: route.abort())
            page.locator("#away").wait_for(state="visible", timeout=20_000)
            page.unroute("**/*")
            page.locator("#away").wait_for(state="hidden", timeout=20_000)
            browser.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
