"""The first minutes in a real browser, over a real `up`: set-up link, a task, its run, its live log."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e.up_kit import Up, eventually
from tests.e2e.window import Window

pytestmark = pytest.mark.one_engine

WORDS: dict[str, dict[str, Any]] = {
    "en": {
        "live": "Runs now.",
        "done": "Succeeded after",
        "stopped": "Stopped by ann after",
        "title": "Dashboard",
    },
    "zh-hans": {"live": "正在运行。", "done": "后成功。", "stopped": "后由 ann 停止。", "title": "仪表盘"},
}
# Prints at once and then each half second; 256 colours, a progress bar and a broken byte on the way.
COUNTING = (
    "echo first; printf '\\033[1;31mred\\033[0m \\033[38;5;208morange\\033[0m\\n'; printf '10%%\\r90%%\\n\\377\\n'; "
    'for i in 1 2 3 4; do echo "line $i"; sleep 0.5; done; echo last'
)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_task_its_run_and_its_live_log(settled: Up, chromium: Any, language: str, width: int) -> None:
    ann = Window(chromium, settled, language=language, width=width)
    words, page = WORDS[language], ann.page
    ann.sign_in()
    assert page.locator("h1").inner_text() == words["title"]
    ann.make(f"Count {language} {width}", COUNTING)
    log = page.locator("[data-log-view]")
    log.get_by_text("line 1", exact=True).wait_for(timeout=10_000)
    # What is printed from here on is there within a second of its being written.
    began = time.monotonic()
    log.get_by_text("line 3", exact=True).wait_for(timeout=2_500)
    assert time.monotonic() - began < 1.0 + 1.0
    page.get_by_text(words["live"]).first.wait_for(timeout=3_000)
    page.locator(".ql-run-head .ql-chip[data-state=succeeded]").wait_for(timeout=10_000)
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
    ann = Window(chromium, settled, language=language, width=width)
    ann.sign_in()
    ann.make(f"Sleep {language} {width}", "echo begun; sleep 60")
    ann.page.locator("[data-log-view]").get_by_text("begun").wait_for(timeout=5_000)
    ann.page.click("[data-dialog=stop]")
    ann.page.fill("#note", "enough")
    ann.page.click("#stop .ql-danger-fill")
    ann.page.locator(".ql-run-head .ql-chip[data-state=cancelled]").wait_for(timeout=15_000)
    ann.page.get_by_text(WORDS[language]["stopped"]).first.wait_for(timeout=2_000)
    assert "enough" in ann.page.locator(".ql-timeline").inner_text()
    ann.close()


def test_a_long_log_opens_at_its_end_and_reads_backwards(settled: Up, chromium: Any) -> None:
    ann = Window(chromium, settled, language="en", width=1280)
    ann.sign_in()
    ann.make("Long", "seq -f 'row %.0f' 0 129999; head -c 40000 /dev/zero | tr '\\0' x")
    page, log = ann.page, ann.page.locator("[data-log-view]")
    page.locator(".ql-run-head .ql-chip[data-state=succeeded]").wait_for(timeout=30_000)
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
    ann = Window(chromium, settled, language="en", width=390, scripts=False)
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
