"""The first minutes in a real browser, over a real `up`: set-up link, a task, its run, its live log."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.up_kit import Up, database, eventually

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = Path("/usr/bin/chromium")
PASSWORD = "correct horse 7 battery"
WORDS: dict[str, dict[str, Any]] = {
    "en": {"live": "Runs now.", "done": "Succeeded after", "stopped": "Stopped after", "title": "Dashboard"},
    "zh-hans": {"live": "正在运行。", "done": "后成功。", "stopped": "后停止。", "title": "仪表盘"},
}
# Prints at once and then each half second; 256 colours, a progress bar and a broken byte on the way.
COUNTING = (
    "echo first; printf '\\033[1;31mred\\033[0m \\033[38;5;208morange\\033[0m\\n'; printf '10%%\\r90%%\\n\\377\\n'; "
    'for i in 1 2 3 4; do echo "line $i"; sleep 0.5; done; echo last'
)
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium here")]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with database() as extra:
        tree = Up(tmp_path_factory.mktemp("panel") / "home", **extra)
        try:
            yield tree.wait_ready()
        finally:
            tree.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


class Person:
    """A browser window that notes whatever the policy or a script complains about."""

    def __init__(self, chromium: Any, up: Up, *, language: str, width: int, scripts: bool = True) -> None:
        self.base = f"http://127.0.0.1:{up.port}"
        phone = width < 640
        self.context = chromium.new_context(
            viewport={"width": width, "height": 844},
            has_touch=phone,
            is_mobile=phone,
            java_script_enabled=scripts,
        )
        self.context.add_cookies([{"name": "ql_language", "value": language, "url": self.base}])
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._stays_here)

    def _stays_here(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:")):
            self.complaints.append(f"asked {request.url}")

    def go(self, path: str) -> None:
        self.page.goto(f"{self.base}{path}")

    def sign_in(self) -> None:
        self.go("/panel/login/")
        self.page.fill("#username", "ann")
        self.page.fill("#password", PASSWORD)
        self.page.click("main button.ql-primary")
        self.page.wait_for_url("**/panel/")

    def make(self, name: str, shell: str) -> None:
        """Fills the form of a new shell task and starts it."""
        self.go("/panel/p/default/tasks/new/")
        self.page.fill("#f-name", name)
        self.page.check("input[name=kind][value=shell]")
        self.page.fill("#f-shell", shell)
        self.page.click("button[value=save-and-run]")
        self.page.wait_for_url("**/panel/runs/**")

    def close(self) -> None:
        overflow = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.context.close()
        assert not self.complaints
        assert overflow <= 0


@pytest.fixture(scope="module")
def settled(up: Up, chromium: Any) -> Up:
    """`up` with its first account, made through the printed link."""
    link = eventually(lambda: re.search(r"/setup\?token=\S+", up.output), "the set-up link")[0]
    ann = Person(chromium, up, language="en", width=1280)
    ann.go(link)
    ann.page.fill("#username", "ann")
    ann.page.fill("#password", PASSWORD)
    ann.page.click("main button.ql-primary")
    ann.page.wait_for_url("**/panel/")
    assert ann.page.locator("ol.ql-steps li").count() == 3
    ann.page.goto(f"{ann.base}/panel/p/default/tasks/")
    ann.close()
    return up


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_task_its_run_and_its_live_log(settled: Up, chromium: Any, language: str, width: int) -> None:
    ann = Person(chromium, settled, language=language, width=width)
    words, page = WORDS[language], ann.page
    ann.sign_in()
    assert page.locator("h1").inner_text() == words["title"]
    ann.make(f"Count {language} {width}", COUNTING)
    log = page.locator("[data-log-view]")
    log.get_by_text("line 1", exact=True).wait_for(timeout=3_000)
    # What is printed from here on is there within a second of its being written.
    began = time.monotonic()
    log.get_by_text("line 3", exact=True).wait_for(timeout=2_500)
    assert time.monotonic() - began < 1.0 + 1.0
    page.get_by_text(words["live"]).first.wait_for(timeout=3_000)
    page.locator(".ql-run-facts .ql-chip[data-state=succeeded]").wait_for(timeout=10_000)
    page.get_by_text(words["done"]).first.wait_for(timeout=1_000)
    log.get_by_text("last", exact=True).wait_for(timeout=2_000)
    assert log.locator(".ql-a-fg-1.ql-a-bold").inner_text() == "red"
    assert log.get_by_text("orange").evaluate("e => e.style.color") == "rgb(255, 135, 0)"
    text = log.inner_text()
    assert "90%" in text and "10%" not in text and "\ufffd" in text
    assert page.locator("[data-only-live]").is_hidden()
    assert page.locator("[data-after-end]").is_enabled()
    ann.close()


@pytest.mark.parametrize(("language", "width"), [("en", 1280), ("zh-hans", 390)])
def test_stopping_from_the_page(settled: Up, chromium: Any, language: str, width: int) -> None:
    ann = Person(chromium, settled, language=language, width=width)
    ann.sign_in()
    ann.make(f"Sleep {language} {width}", "echo begun; sleep 60")
    ann.page.locator("[data-log-view]").get_by_text("begun").wait_for(timeout=5_000)
    ann.page.click("[data-dialog=stop]")
    ann.page.fill("#note", "enough")
    ann.page.click("#stop .ql-danger-fill")
    ann.page.locator(".ql-run-facts .ql-chip[data-state=cancelled]").wait_for(timeout=15_000)
    ann.page.get_by_text(WORDS[language]["stopped"]).first.wait_for(timeout=2_000)
    assert "enough" in ann.page.locator(".ql-timeline").inner_text()
    ann.close()


def test_a_long_log_opens_at_its_end_and_reads_backwards(settled: Up, chromium: Any) -> None:
    ann = Person(chromium, settled, language="en", width=1280)
    ann.sign_in()
    ann.make("Long", "seq -f 'row %.0f' 0 129999; head -c 40000 /dev/zero | tr '\\0' x")
    page, log = ann.page, ann.page.locator("[data-log-view]")
    page.locator(".ql-run-facts .ql-chip[data-state=succeeded]").wait_for(timeout=30_000)
    page.reload()
    log.get_by_text("row 129999", exact=True).wait_for(timeout=3_000)
    assert log.locator(".ql-fold-more").count() == 1
    assert log.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 40
    assert log.get_by_text("row 121000", exact=True).count() == 0
    log.evaluate("e => { e.scrollTop = 0 }")
    log.get_by_text("row 121000", exact=True).wait_for(timeout=3_000, state="attached")
    assert page.locator("[data-log-follow]").get_attribute("aria-pressed") == "false"
    lines = log.evaluate("e => [...e.querySelectorAll('.ql-chunk > div')].map(line => line.textContent)")
    rows = [line for line in lines if line.startswith("row")]
    assert rows == [f"row {number}" for number in range(130_000 - len(rows), 130_000)]
    first = log.get_by_text("row 0", exact=True)
    for _ in range(40):
        if first.count():
            break
        log.evaluate("e => { e.scrollTop = 0 }")
        page.wait_for_timeout(150)
    assert first.count() and log.evaluate("e => e.querySelectorAll('.ql-chunk').length") <= 200
    page.click("[data-log-follow]")
    log.get_by_text("row 129999", exact=True).wait_for(timeout=3_000)
    page.wait_for_timeout(200)
    assert log.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 40
    ann.close()


def test_everything_works_without_script(settled: Up, chromium: Any) -> None:
    ann = Person(chromium, settled, language="en", width=390, scripts=False)
    ann.sign_in()
    ann.make("Plain", "echo no script")
    page = ann.page

    def ended() -> bool:
        page.reload()
        return bool(page.locator(".ql-chip[data-state=succeeded]").count())

    eventually(ended, "the run ends")
    assert "no script" in page.locator("[data-log-view] pre").inner_text()
    ann.go("/panel/p/default/tasks/")
    page.locator("button[formaction$='/plain/run/']").click()
    page.get_by_text("Open the run").click()
    page.wait_for_url("**/panel/runs/**")
    ann.context.close()


def test_the_task_form_with_its_script(settled: Up, chromium: Any) -> None:
    ann = Person(chromium, settled, language="en", width=1280)
    ann.sign_in()
    ann.go("/panel/p/default/tasks/new/")
    page = ann.page
    page.fill("#f-name", "Values")
    page.click("#f-source")
    page.keyboard.type("import os\nfor name in 'AB':")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("print(repr(os.environ[name]))")
    assert page.locator("#f-source").input_value().endswith("\n    print(repr(os.environ[name]))")
    page.click("#f-env")
    page.locator("[data-pairs] [name=env_name]").first.fill("A")
    page.locator("[data-pairs] [name=env_value]").first.fill('one\n "two" $HOME `x`  ')
    page.click("[data-add-pair]")
    page.locator("[data-pairs] [name=env_name]").last.fill("B")
    page.locator("[data-pairs] [name=env_value]").last.fill("")
    assert page.locator("[data-unsaved]").is_visible()
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/panel/runs/**")
    page.locator(".ql-run-facts .ql-chip[data-state=succeeded]").wait_for(timeout=10_000)
    log = page.locator("[data-log-view]")
    log.get_by_text("two").wait_for(timeout=2_000)
    assert log.inner_text().split("\n")[:2] == [repr('one\n "two" $HOME `x`  '), "''"]
    ann.close()
