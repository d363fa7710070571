"""What stands on a page only after somebody did something: menus, dialogs, the palette; for pictures of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Act = Callable[[Any], Any]


def press(selector: str) -> Act:
    """Presses the first such thing that is seen; the act answers False where this width has none."""

    def act(page: Any) -> bool:
        for found in page.locator(selector).all():
            if found.is_visible():
                found.click()
                return True
        return False

    return act


def palette(page: Any) -> None:
    """Opened and a few letters typed."""
    page.keyboard.press("Control+k")
    page.wait_for_timeout(200)
    page.keyboard.type("sync", delay=10)


def find(page: Any) -> None:
    """Search in a log."""
    page.keyboard.press("/")
    page.keyboard.type("error", delay=10)


def drawer(page: Any) -> Any:
    """The side bar of a window that is neither wide nor a phone."""
    if page.viewport_size["width"] < 1000:
        return False
    page.set_viewport_size({"width": 900, "height": 900})
    page.locator(".ql-burger").click()
    return None


def select(page: Any) -> None:
    """Some rows of the task list."""
    for box in page.locator("tbody input[type=checkbox]").all()[:3]:
        if box.is_visible():
            box.check()


def try_rule(page: Any) -> None:
    """A rule of retention that is not saved."""
    page.fill("#f-most", "2")
    page.click("button[value=try]")
    page.wait_for_load_state()


MOMENTS: dict[str, tuple[str, Act]] = {
    "moment-retention": ("retention", try_rule),
    "moment-run-menu": ("run-succeeded", press(".ql-page-head .ql-menu summary, header .ql-menu summary")),
    "moment-palette": ("dashboard", palette),
    "moment-stop": ("run-live", press("[data-dialog=stop]")),
    "moment-person": ("dashboard", press(".ql-person summary")),
    "moment-more": ("dashboard", press(".ql-tabbar summary")),
    "moment-log-menu": ("run-failed", press(".ql-log-bar .ql-menu summary")),
    "moment-find": ("run-failed", find),
    "moment-facts": ("run-failed", press("#tab-facts")),
    "moment-files": ("run-succeeded", press("#tab-files")),
    "moment-step": ("run-failed", press("#run-timeline li:last-child summary")),
    "moment-time": ("runs", press(".ql-time summary")),
    "moment-audit": ("audit", press("tbody details summary")),
    "moment-select": ("tasks", select),
    "moment-drawer": ("runs", drawer),
}
