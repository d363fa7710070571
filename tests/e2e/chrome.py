"""A person's browser with scripts: signed in, watched for what the strict policy refused and for errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from tests.e2e.person import NAME, PASSWORD
from tests.e2e.up_kit import PATIENCE_S, Up, eventually
from tests.e2e.window import Window, at_rest

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


_RUN = """async (rules) => {
  const only = rules.length ? {runOnly: rules} : {};
  const found = (await axe.run(document, {resultTypes: ["violations"], ...only})).violations;
  const told = (node) => `${node.html.slice(0, 160)} (${node.any[0]?.message ?? ""})`;
  return found
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.slice(0, 4).map(told).join(" | ")}`);
}"""


class Person(Window):
    """The first account of a `House` or of the pictures' panel, signed in; `faults` are what no page may do."""

    who = (NAME, PASSWORD)

    def __init__(
        self, chrome: Any, up: Up, *, language: str = "en", width: int = 1440, **options: Any
    ) -> None:
        super().__init__(chrome, up, language=LANGUAGES[language], width=width, **{"height": 900, **options})
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=self.base)
        self.sign_in()

    @property
    def faults(self) -> list[str]:
        """Complaints, without the answers that were refused on purpose."""
        return [one for one in self.complaints if "Failed to load resource" not in one]

    def until(self, condition: str, seconds: float = PATIENCE_S) -> None:
        """Waits for an expression; from outside, since the policy lets no page evaluate text."""

        def holds() -> Any:
            self.rest()
            return self.page.evaluate(condition)

        eventually(holds, condition, seconds)

    def close(self) -> None:
        self.context.close()


def axe_faults(page: Any, *rules: str) -> list[str]:
    """Serious and critical findings of axe-core on the page as it is, of some rules or of all of them.

    It is injected past the policy by the debugger.
    """
    at_rest(page)
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    return list(page.evaluate(_RUN, list(rules)))
