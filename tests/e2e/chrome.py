"""A person's browser with scripts: signed in, watched for what the strict policy refused and for errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from tests.e2e.person import NAME, PASSWORD
from tests.e2e.up_kit import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--force-color-profile=srgb"]
LANGUAGES = {"en": "en", "zh": "zh-hans"}


@contextmanager
def browser(**options: Any) -> Iterator[Any]:
    """Chromium, ended again."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, **options)
        try:
            yield started
        finally:
            started.close()


_RUN = """async () => {
  const found = (await axe.run(document, {resultTypes: ["violations"]})).violations;
  const told = (node) => `${node.html.slice(0, 160)} (${node.any[0]?.message ?? ""})`;
  return found
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.slice(0, 4).map(told).join(" | ")}`);
}"""


class Person:
    """One browser context at one panel; `faults` gathers what a page must not do."""

    def __init__(
        self, chrome: Any, port: int, *, language: str = "en", sign_in: bool = True, **options: Any
    ) -> None:
        self.base = f"http://127.0.0.1:{port}"
        options.setdefault("viewport", {"width": 1440, "height": 900})
        self.context = chrome.new_context(**options)
        self.context.add_cookies([{"name": "ql_language", "value": LANGUAGES[language], "url": self.base}])
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=self.base)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        if sign_in:
            self.sign_in()

    def _console(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(f"{self.page.url}: {message.text}")

    def sign_in(self) -> None:
        """Through the page, as everybody does."""
        self.page.goto(f"{self.base}/panel/login/")
        self.page.fill("#username", NAME)
        self.page.fill("#password", PASSWORD)
        self.page.click("main form button")
        self.page.wait_for_url("**/panel/")

    def go(self, address: str) -> Any:
        """Opens a page of the panel; its answer."""
        return self.page.goto(self.base + address)

    def until(self, condition: str, seconds: float = 15) -> None:
        """Waits for an expression; from outside, since the policy lets no page evaluate text."""
        eventually(lambda: self.page.evaluate(condition), condition, seconds)

    def close(self) -> None:
        self.context.close()


def axe_faults(page: Any) -> list[str]:
    """Serious and critical findings of axe-core on the page as it is; injected past the policy by the debugger."""
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    return list(page.evaluate(_RUN))
