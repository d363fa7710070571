"""From the set-up link to the first green run in under a minute: by mouse, by keyboard, on a phone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.up_kit import Up, database
from tests.e2e.window import Window

pytestmark = pytest.mark.one_engine

GREEN = ".ql-chip[data-state=succeeded]"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Up]:
    """A panel nobody has seen yet."""
    with database() as extra:
        tree = Up(tmp_path / "home", **extra)
        try:
            yield tree.wait_ready()
        finally:
            tree.stop()


def test_by_mouse_with_an_example(fresh: Up, chromium: Any) -> None:
    ann = Window(chromium, fresh, language="en", width=1440)
    began = time.monotonic()
    ann.set_up(fresh)
    page = ann.page
    page.get_by_role("button", name="Add three examples").click()
    page.wait_for_url("**/tasks/")
    assert page.locator("tr[data-row]").count() == 3
    page.get_by_role("button", name="Run Hello from Python").click()
    page.get_by_text("Open the run").click()
    page.locator(GREEN).first.wait_for(timeout=15_000)
    assert time.monotonic() - began < 60
    assert page.get_by_text("step 5 of 5").count()
    # What was only for looking at goes with one click, and takes nothing else with it.
    ann.go("/panel/p/default/tasks/")
    page.get_by_role("button", name="Remove the examples").click()
    page.get_by_text("There is no task yet.").wait_for()
    ann.close()


def test_by_keyboard_in_chinese(fresh: Up, chromium: Any) -> None:
    ann = Window(chromium, fresh, language="zh-hans", width=1440)
    began = time.monotonic()
    ann.set_up(fresh)
    page, keys = ann.page, ann.page.keyboard
    keys.press("n")
    page.wait_for_url("**/tasks/new/")
    page.locator("ql-editor .cm-content").first.wait_for()
    keys.type("第一个任务")
    for _ in range(12):
        keys.press("Tab")
        if page.evaluate("document.activeElement.localName") == "ql-editor":
            break
    keys.type("print('ok')")
    keys.press("Control+Enter")
    page.wait_for_url("**/panel/runs/**")
    page.locator(GREEN).first.wait_for(timeout=15_000)
    assert time.monotonic() - began < 60
    ann.go("/panel/p/default/tasks/")
    assert page.get_by_text("task-").first.inner_text().startswith("task-")
    ann.close()


def test_by_thumb_on_a_phone(fresh: Up, chromium: Any) -> None:
    ann = Window(chromium, fresh, language="en", width=390)
    began = time.monotonic()
    ann.set_up(fresh)
    page = ann.page
    page.get_by_role("link", name="Make a task").tap()
    page.wait_for_url("**/tasks/new/**")
    page.locator("#f-name").tap()
    page.keyboard.type("On the way")
    page.locator("button[value=save-and-run]").tap()
    page.wait_for_url("**/panel/runs/**")
    page.locator(GREEN).first.wait_for(timeout=15_000)
    assert time.monotonic() - began < 60
    ann.close()
    again = Window(chromium, fresh, language="en", width=390)
    again.sign_in()
    assert again.page.locator("ol.ql-steps").count() == 0
    again.close()
